"""Claims about building a run from its plan; tests/reliability/test_two_commands.py covers refused folders."""

from pathlib import Path

import pytest
import torch

from pretrain.job.processes import start_processes
from pretrain.job.watchdog import Watchdog
from pretrain.training.assembly import build_training
from pretrain.training.models import initial_model
from pretrain.training.plan import make_plan
from pretrain.training.run_folder import read_run
from pretrain.training.starts import Startup
from tests.pretrain.training.test_plan import options


def test_a_plan_becomes_a_model_under_the_engine_and_a_folder_that_describes_it(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, world = make_plan(options(shards_folder, tmp_path / "run")), start_processes()
    with Watchdog(world, 120, plan.folder) as watchdog:
        training = build_training(plan, world, watchdog, Startup())
    assert capsys.readouterr().out.startswith(f"{plan}\n")
    assert read_run(tmp_path / "run") == plan.description
    assert training.batches.micro_batches * training.engine.config.micro_batch_size == plan.run.batch_size
    weights = training.engine.module.state_dict()
    for name, weight in initial_model(plan.description).state_dict().items():
        assert torch.equal(weights[name], weight.to(weights[name].dtype)), name
