"""Claim: between log lines the host waits for the device once a step, where DeepSpeed waits for it anyway."""

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.pretrain.conftest import shards_folder

__all__ = ["shards_folder"]

STEPS = 100
NEVER = ("log_every=1000", "evaluate_every=1000", "checkpoint_every=1000", "histogram_every=1000")
SMALLEST = ("model.layers=1", "model.hidden_size=32", "model.intermediate_size=32", "model.generator_hidden_size=16")


def test_in_100_steps_our_code_reads_the_device_once_a_step_just_before_deepspeed_does(
    shards_folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "tests/proofs/host_reads.py", tmp_path / "counts.json", "--preset", "tiny"]
    command += ["--data", shards_folder, "--output", tmp_path / "run", "--deepspeed_config"]
    command += ["ds_configs/zero1_bf16.json", "--set", f"optim.steps={STEPS}", "optim.warmup_steps=2", "batch_size=4"]
    finished = subprocess.run([*command, *NEVER, *SMALLEST], cwd=REPOSITORY, capture_output=True, text=True)
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert finished.returncode == 0, finished.stderr
    every_step = {name: count for name, count in counts.items() if count >= STEPS / 2 and "init" not in name}
    ours = {name: count for name, count in every_step.items() if name.startswith("pretrain/")}
    assert ours == {"pretrain/train.py tolist": STEPS}  # the loss and whether to stop, over all ranks
    assert every_step["zero/stage_1_and_2.py item"] == STEPS  # DeepSpeed's look for an overflow
