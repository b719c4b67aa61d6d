"""Claims about the engine's benchmark: the plain loop and the engine do the same step."""

import re
import subprocess
import sys
from functools import partial

import pytest
import torch

from bench.batches import random_batch
from bench.engine import Step, engine_step, hand_step, new_model, operations
from bench.models import CONFIGS, new_engine
from pretrain.config import RunConfig
from pretrain.job.processes import start_processes
from pretrain.method.electra import Electra
from pretrain.presets import preset
from tests.conftest import REPOSITORY


def both_steps(run: RunConfig, models: list[Electra], config: str) -> tuple[Step, Step]:
    """A step by hand and one under the engine, each with its own model."""
    engine = new_engine(models[1], run, CONFIGS / f"{config}.json", 2, start_processes())
    return hand_step(models[0], run, engine.device, engine.dtype), partial(engine_step, engine)


def test_plain_loop_and_engine_reach_the_same_weights() -> None:
    run, models = preset("tiny"), [new_model(preset("tiny"), 300) for _ in range(2)]
    steps = both_steps(run, models, "zero1_fp32")
    for _ in range(3):
        batch = random_batch(2, 16, 300)
        for step in steps:
            step(batch)
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_engine_needs_few_more_operations_per_parameter_than_a_plain_loop() -> None:
    """DeepSpeed's own code needs fifteen per parameter, mostly to check whether gradients are finite."""
    run, batch = preset("tiny"), random_batch(2, 16, 300)
    models = [new_model(run, 300) for _ in range(2)]
    by_hand, engine = both_steps(run, models, "zero1_bf16")
    for step in (by_hand, engine):
        step(batch)
    more = operations(partial(engine, batch)) - operations(partial(by_hand, batch))
    assert more < 4 * len(list(models[0].parameters()))


@pytest.mark.long
def test_the_command_prints_the_engines_overhead() -> None:
    command = (sys.executable, "bench/engine.py", "--preset", "tiny", "--batch_size", "2", "--steps", "1")
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert re.search(r"engine +\S+ ms per step, \S+ operations: [+-]\d", finished.stdout)
