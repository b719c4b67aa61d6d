"""Claims about the engine's benchmark: by hand and under the engine, the same step is timed."""

import re
import subprocess
import sys
from functools import partial

import pytest
import torch

from bench.batches import random_batch
from bench.engine import EngineOptions, engine_step, hand_step, new_model, operations
from pretrain.job.processes import start_processes
from pretrain.presets import preset
from tests.conftest import REPOSITORY


def test_by_hand_and_under_the_engine_the_weights_end_alike() -> None:
    world, run, options = start_processes(), preset("tiny").run, EngineOptions(preset="tiny", batch_size=2)
    models = [new_model(run, 300) for _ in range(2)]
    steps = [make(model, run, options, world) for make, model in zip((hand_step, engine_step), models, strict=True)]
    for _ in range(3):
        batch = random_batch(2, 16, 300)
        for step in steps:
            step(batch)
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_engine_asks_for_few_operations_a_parameter_more_than_a_step_by_hand() -> None:
    """DeepSpeed by itself asks for fifteen, most of them to see whether each gradient is finite."""
    world, run, batch = start_processes(), preset("tiny").run, random_batch(2, 16, 300)
    bf16 = REPOSITORY / "ds_configs/zero1_bf16.json"
    options = EngineOptions(preset="tiny", batch_size=2, deepspeed_config=bf16)
    models = [new_model(run, 300) for _ in range(2)]
    by_hand, engine = hand_step(models[0], run, options, world), engine_step(models[1], run, options, world)
    for step in (by_hand, engine):
        step(batch)
    more = operations(partial(engine, batch)) - operations(partial(by_hand, batch))
    assert more < 4 * len(list(models[0].parameters()))


@pytest.mark.long
def test_the_command_prints_what_the_engine_adds() -> None:
    command = (sys.executable, "bench/engine.py", "--preset", "tiny", "--batch_size", "2", "--steps", "1")
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert re.search(r"engine +\S+ ms a step, \S+ operations: [+-]\d", finished.stdout)
