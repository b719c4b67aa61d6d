"""Claims about each rank's own time; test_train.py has two real ranks."""

import time

import pytest
import torch
from torch import nn

from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import start_processes
from pretrain.training.stragglers import OwnTime
from tests.pretrain.engine import engine_worker as worker


@pytest.fixture
def own_time() -> OwnTime:
    model = nn.Linear(2, 2)
    config = worker.resolved_config("zero1_fp32", world_size=1)
    return OwnTime(Engine(model, parameter_groups(model, 0.01), config, start_processes()))


def test_waiting_for_data_and_computing_count_but_waiting_for_other_ranks_does_not(own_time: OwnTime) -> None:
    def slow_data(steps: int) -> object:
        for step in range(steps):
            time.sleep(0.1)
            yield step

    started = time.monotonic()
    for _ in own_time.reading(slow_data(2)):  # type: ignore[arg-type]
        with own_time.computing():
            time.sleep(0.2)
        time.sleep(0.4)
    values = own_time.end()
    assert values["slowest_rank"] == 0
    assert values["slowest_rank_seconds"] == values["median_rank_seconds"]
    assert 0.3 <= values["slowest_rank_seconds"] <= (time.monotonic() - started) / 2 - 0.4


def test_each_reading_starts_a_new_measurement(own_time: OwnTime) -> None:
    for _ in own_time.reading(range(1)):
        with own_time.computing():
            time.sleep(0.3)
    own_time.end()
    started = time.monotonic()
    for _ in own_time.reading(range(1)):
        with own_time.computing():
            torch.ones(2)
    assert own_time.end()["slowest_rank_seconds"] <= time.monotonic() - started
