"""Claims about building a run from its plan; tests/reliability/test_two_commands.py covers refused folders."""

from pathlib import Path

import pytest
import torch

from pretrain.engine.checkpoint import EngineState, load, newest_valid
from pretrain.engine.engine import MOMENTS
from pretrain.engine.optim import decays
from pretrain.job.processes import start_processes
from pretrain.job.watchdog import Watchdog
from pretrain.training.assembly import build_training
from pretrain.training.models import initial_model
from pretrain.training.plan import make_plan
from pretrain.training.run_folder import CHECKPOINTS, read_run
from pretrain.training.starts import Startup
from pretrain.training.train import train
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


LR, BETAS = 1e-3, (0.9, 0.999)


def trained(
    shards: Path, folder: Path, steps: int, *overrides: str, **changes: object
) -> tuple[EngineState, EngineState]:
    """The states at the start and at the end of a run with a constant batch and a schedule of its own."""
    schedule = (
        f"optim.steps={steps}",
        "optim.warmup_steps=0",
        f"optim.lr={LR}",
        "batch_size=4",
        "evaluate_sequences=4",
        *overrides,
    )
    plan, world = make_plan(options(shards, folder, set=schedule, **changes)), start_processes()
    with Watchdog(world, 120, plan.folder) as watchdog:
        training = build_training(plan, world, watchdog, Startup())
        first = training.engine.full_state()
        assert train(training) == 0
    saved = newest_valid(folder / CHECKPOINTS)
    assert saved is not None
    return first, load(saved)[0]


@pytest.mark.parametrize("correction", [True, False])
def test_a_second_phase_begins_with_the_firsts_bits_and_its_first_update_is_adams_next(
    correction: bool, shards_folder: Path, tmp_path: Path
) -> None:
    """Adam's next update by hand, from the moments after it; without a bias correction, electra's."""
    switch = f"optim.adam_bias_correction={str(correction).lower()}"
    _, saved = trained(shards_folder, tmp_path / "one", 3, switch)
    kept = {"init_from": (str(tmp_path / "one"),), "keep_optimizer": True}
    first, then = trained(shards_folder, tmp_path / "two", 1, switch, "seed=1", **kept)
    assert first.adam_steps == saved.adam_steps == 3 and then.adam_steps == 4
    for ours, theirs in (
        (first.weights, saved.weights),
        *((first.moments[key], saved.moments[key]) for key in MOMENTS),
    ):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    c1, c2 = (1 - beta**4 if correction else 1.0 for beta in BETAS)
    for name, weight in saved.weights.items():
        m, v = (then.moments[key][name].double() for key in MOMENTS)
        gradient = (m - BETAS[0] * saved.moments["exp_avg"][name].double()) / (1 - BETAS[0])
        before = saved.moments["exp_avg_sq"][name].double()
        assert torch.allclose(v, BETAS[1] * before + (1 - BETAS[1]) * gradient**2, rtol=1e-3, atol=1e-12), name
        decayed = weight.double() * (1 - LR * 0.01 * decays(name))
        expected = decayed - LR * (m / c1) / ((v / c2).sqrt() + 1e-6)
        assert torch.allclose(then.weights[name].double(), expected, rtol=1e-6, atol=1e-7), name
