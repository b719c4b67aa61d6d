"""Claims about building a run from its plan; tests/reliability/test_two_commands.py covers refused folders."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pretrain.data.batches import Batch
from pretrain.engine.checkpoint import load, save
from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import OptimConfig, parameter_groups
from pretrain.job.processes import start_processes
from pretrain.job.watchdog import Watchdog
from pretrain.method.electra import Electra
from pretrain.training.assembly import build_training
from pretrain.training.models import initial_model
from pretrain.training.plan import make_plan
from pretrain.training.run_folder import read_run
from pretrain.training.starts import Startup
from tests.deepspeed_values import values_of
from tests.pretrain.conftest import SMALL_MODEL
from tests.pretrain.engine.engine_worker import same_states
from tests.pretrain.training.test_plan import options


def make_engine(model: Electra, **optim: object) -> Engine:
    """An engine of one process at stage 0, in fp32."""
    settings = OptimConfig.from_values({"lr": 1e-2, "steps": 10, "warmup_steps": 0, **optim})
    config = resolve(values_of("zero0_fp32"), batch_size=3, world_size=1, device_type="cpu", optim=settings)
    return Engine(model, parameter_groups(model, settings.weight_decay), config, start_processes())


def train(engine: Engine, batch: Batch, steps: range) -> list[float]:
    """Each step's gradient norm; the steps draw different replacements."""
    norms = []
    for step in steps:
        uniforms_BK = torch.rand(3, 2, generator=torch.Generator().manual_seed(step))
        engine.backward(engine.forward(batch._replace(uniforms_BK=uniforms_BK)).loss)
        norms.append(float(engine.update(1e-2).gradient_norm))
    return norms


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


@pytest.mark.parametrize("sharing", ["es", "nes", "gdes"])
def test_with_any_embedding_sharing_a_resumed_run_is_bitwise_one_that_was_not_stopped(
    sharing: str, batch: Batch, make_electra: Callable[..., Electra], tmp_path: Path
) -> None:
    sizes = SMALL_MODEL.model_copy(update={"embedding_sharing": sharing})
    whole, first = (make_engine(make_electra(name="hp_loss", model=sizes)) for _ in range(2))
    norms = train(whole, batch, range(6))
    assert train(first, batch, range(3)) == norms[:3]
    checkpoint = save(tmp_path, 3, first.full_state(), {}, keep_last=1)
    second = make_engine(make_electra(name="hp_loss", model=sizes.model_copy(update={"initializer_range": 0.1})))
    second.load_full_state(load(checkpoint)[0])
    assert train(second, batch, range(3, 6)) == norms[3:]
    assert same_states(second.full_state(), whole.full_state())
