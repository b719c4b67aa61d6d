"""Claims about where the time of a start goes; of two launched ranks in test_train.py."""

import time

import psutil
import pytest
from torch import nn

from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import start_processes
from pretrain.training.startup import Startup, describe_start
from tests.pretrain.engine import engine_worker as worker


def test_the_phases_follow_each_other_from_the_beginning_of_the_process() -> None:
    model = nn.Linear(2, 2)
    config = worker.resolved_config("zero1_fp32", world_size=1)
    engine = Engine(model, parameter_groups(model, 0.01), config, start_processes())
    startup = Startup()
    time.sleep(0.1)
    startup.done("nap")
    since = time.time() - psutil.Process().create_time()
    seconds = startup.of_ranks(engine)
    assert list(seconds) == ["imports and plan", "nap"]
    assert seconds["nap"][0] >= 0.1
    assert sum(phase for (phase,) in seconds.values()) == pytest.approx(since, abs=0.05)


def test_the_line_tells_of_the_slowest_rank() -> None:
    assert describe_start({"plan": [1.0, 3.0], "engine": [4.0, 0.5]}) == "started in 5.0 s: plan 1.0, engine 4.0"
