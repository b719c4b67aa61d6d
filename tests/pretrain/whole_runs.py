"""Whole runs of a tiny model, started as a user would, and what they leave."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pretrain.runs.log import read_metrics

Launch = Callable[..., subprocess.Popen[str]]


CLOCK = {
    "tokens_per_second",
    "samples_per_second",
    "tflops",
    "peak_share",
    "gpu_memory_gb",
    "slowest_rank",
    "slowest_rank_seconds",
    "median_rank_seconds",
}
"""Keys that differ between two equal runs."""


SHORT_RUN = (
    "optim.steps=24",
    "optim.warmup_steps=4",
    "batch_size=8",
    "log_every=1",
    "checkpoint_every=8",
    "evaluate_every=12",
    "evaluate_sequences=8",
    "model.dropout=0.1",
    "model.attention_dropout=0.1",
)


def run_arguments(shards: str | Path, output: Path, *overrides: str) -> list[str | Path]:
    return [
        "pretrain/run.py",
        "--preset",
        "tiny",
        "--data",
        shards,
        "--output",
        output,
        "--set",
        *SHORT_RUN,
        *overrides,
    ]


def finished(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=900)
    assert process.returncode == code, output
    return output


def wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 200
    while not any(record["step"] >= step for record in read_complete(folder)):
        assert time.monotonic() < deadline, "the run did not come this far"
        time.sleep(0.05)


def read_complete(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def losses(folder: Path) -> list[dict[str, Any]]:
    """Every record without its times."""
    records = [record for kind in ("train", "held_out") for record in read_metrics(folder, kind)]
    return [{key: value for key, value in record.items() if key not in CLOCK} for record in records]


def rank_of(folder: Path, rank: int) -> int:
    """PID of the process that writes this rank's log."""
    return int((folder / "logs" / f"rank-{rank:04d}.log").read_text().split("process ")[-1].split()[0])
