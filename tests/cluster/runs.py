"""Short runs of the real command, started and watched by the launcher tests."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY, free_port

HANG_TIMEOUT = 20
"""Seconds: the longest that these runs wait for a host that is gone."""
SHORT_RUN = ("optim.warmup_steps=4", "batch_size=8", "log_every=1", "checkpoint_every=8", "evaluate_sequences=8")
SLOW_RUN = ("model.layers=8", "optim.steps=2000")
"""Options for a run long enough to be interrupted."""


LONGER = ("optim.steps=200", "checkpoint_every=50")
"""Options for a run long enough to be interrupted after its first checkpoint, and short enough to finish."""


def training(shards: Path, output: Path, *overrides: str) -> list[object]:
    options = ["--preset", "tiny", "--data", shards, "--output", output, "--hang_timeout", HANG_TIMEOUT]
    return [REPOSITORY / "pretrain/run.py", *options, "--set", "optim.steps=12", *SHORT_RUN, *overrides]


def deepspeed(*options: object) -> list[object]:
    return ["deepspeed", f"--master_port={free_port()}", *options]


def losses(folder: Path) -> dict[int, tuple[float, ...]]:
    lines = (folder / "metrics.jsonl").read_text().split("\n")[:-1] if (folder / "metrics.jsonl").exists() else []
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    return {r["step"]: (r["generator_loss"], r["sampler_loss"], r["discriminator_loss"]) for r in records}


def saved_step(folder: Path) -> int:
    """Step of the last checkpoint that was saved in addition to the scheduled ones."""
    return int(max((folder / "checkpoints").glob("step-*[0-9]")).name.removeprefix("step-"))


def wait_for(condition: Callable[[], Any], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
