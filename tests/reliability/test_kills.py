"""Twenty kills at random moments, five per ZeRO stage: during the start, between steps, and while saving.

Two ranks under the real launcher, with dropout, accumulate two micro-batches per step and save every other step.
"""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pretrain.engine.checkpoint import newest_valid
from tests.deepspeed_values import values_of
from tests.pretrain.whole_runs import Launch, finished, losses, run_arguments

SMALLEST = ("model.layers=2", "model.hidden_size=32", "model.intermediate_size=64", "model.generator_hidden_size=16")
STEPS, KILLS, SEED = 32, 5, 0
SCHEDULE = (
    f"optim.steps={STEPS}",
    "checkpoint_every=2",
    "evaluate_every=16",
    "histogram_every=16",
    "keep_checkpoints=2",
)


def kill_inside_a_write(process: subprocess.Popen[str], checkpoints: Path) -> None:
    """Kills the process while a checkpoint is half written, unless the run ends first."""
    while process.poll() is None and not any(checkpoints.glob("*.saving")):
        pass
    os.killpg(process.pid, signal.SIGKILL)


def kill_after(process: subprocess.Popen[str], folder: Path, steps: int, seconds: float) -> None:
    """Kills the process `seconds` after the run has logged `steps` more steps; with 0 steps, after its start."""
    goal, deadline = logged(folder) + steps, time.monotonic() + 300
    while process.poll() is None and logged(folder) < goal:
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)


def logged(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_run_killed_at_random_moments_ends_bitwise_like_an_undisturbed_one(
    stage: int, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    moments = random.Random(SEED + stage)
    overrides = (*SMALLEST, *SCHEDULE)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    file = tmp_path / "deepspeed.json"
    file.write_text(json.dumps(values_of(f"zero{stage}_fp32") | {"train_micro_batch_size_per_gpu": 2}))
    options = ["--deepspeed_config", file]
    finished(launch(2, *run_arguments(shards_folder, whole, *overrides), *options))

    torn = 0
    for number in range(KILLS):
        process = launch(2, *run_arguments(shards_folder, killed, *overrides), *options)
        if number % 2:
            kill_inside_a_write(process, killed / "checkpoints")
            torn += len([*(killed / "checkpoints").glob("*.saving")])
        else:
            kill_after(process, killed, moments.randrange(3), moments.uniform(0, 2))
        process.communicate()
        assert process.returncode != 0, "the run ended before it was killed"
        newest_valid(killed / "checkpoints", say=pytest.fail)
    assert torn, "no kill interrupted a save"

    finished(launch(2, *run_arguments(shards_folder, killed, *overrides), *options))
    assert losses(killed) == losses(whole)
    found = [newest_valid(folder / "checkpoints") for folder in (killed, whole)]
    ends = [checkpoint.folder for checkpoint in found if checkpoint and checkpoint.step == STEPS]
    assert len({(end / "weights.safetensors").read_bytes() for end in ends}) == 1 and len(ends) == 2
    assert not [*killed.glob("checkpoints/*.saving")]
