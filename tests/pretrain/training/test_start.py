"""Claims about building a run from its plan; tests/reliability/test_two_commands.py covers refused folders."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pretrain.data.batches import Batch
from pretrain.engine.checkpoint import EngineState, load, newest_valid, save
from pretrain.engine.engine import Engine
from pretrain.engine.optim import OptimConfig, decays
from pretrain.engine.plain import MOMENTS
from pretrain.method.electra import Electra
from pretrain.runs.folder import CHECKPOINTS, read_run
from pretrain.runs.models import initial_model
from tests.pretrain.conftest import SHARING, options
from tests.pretrain.engine.engine_worker import same_states
from tests.pretrain.training.conftest import built, make_engine


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
    with built(options(shards_folder, tmp_path / "run")) as training:
        plan = training.plan
    assert capsys.readouterr().out.startswith(f"{plan}\n")
    assert read_run(tmp_path / "run") == plan.description
    assert training.batches.plan.micro_batches * training.engine.config.micro_batch_size == plan.run.batch_size
    weights = training.engine.module.state_dict()
    for name, weight in initial_model(plan.description, plan.donors).state_dict().items():
        assert torch.equal(weights[name], weight.to(weights[name].dtype)), name


@pytest.mark.parametrize("sharing", ["es", "nes", "gdes"])
def test_with_any_embedding_sharing_a_resumed_run_is_bitwise_one_that_was_not_stopped(
    sharing: str, batch: Batch, make_electra: Callable[..., Electra], tmp_path: Path
) -> None:
    sizes = SHARING[sharing]
    whole, first = (make_engine(make_electra(name="hp_loss", model=sizes)) for _ in range(2))
    norms = train(whole, batch, range(6))
    assert train(first, batch, range(3)) == norms[:3]
    checkpoint = save(tmp_path, 3, first.full_state(), {}, keep_last=1)
    second = make_engine(make_electra(name="hp_loss", model=sizes.model_copy(update={"initializer_range": 0.1})))
    second.load_full_state(load(checkpoint)[0])
    assert train(second, batch, range(3, 6)) == norms[3:]
    assert same_states(second.full_state(), whole.full_state())


Weights = dict[str, torch.Tensor]


@pytest.fixture
def trained(batch: Batch, make_electra: Callable[..., Electra]) -> Callable[..., Weights]:
    """Trains a model for a few steps and returns its weights; keyword arguments are settings of `OptimConfig`."""

    def run(
        sharing: str, objective: str = "electra", lambda2: float = 50.0, steps: int = 6, **optim: object
    ) -> Weights:
        engine = make_engine(make_electra(name=objective, lambda2=lambda2, model=SHARING[sharing]), **optim)
        train(engine, batch, range(steps))
        return engine.full_state().weights

    return run


def changed(one: Weights, other: Weights) -> set[str]:
    return {name for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.parametrize("objective", ["electra", "hp_loss", "hp_dist"])
@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_without_clipping_adam_cancels_lambda2_where_no_embeddings_are_shared(
    sharing: str, objective: str, trained: Callable[..., Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam divides a gradient by its size; a power of two loses no bit, so the paths are bitwise equal."""
    monkeypatch.setattr(OptimConfig, "eps", 1e-30)
    one, many = (trained(sharing, objective, lambda2, gradient_clipping=0.0) for lambda2 in (1.0, 64.0))
    assert not changed(one, many)
    start = trained(sharing, objective, steps=0)
    assert changed(one, start) >= {name for name in start if not name.endswith("key.bias")}


def test_lambda2_matters_where_embeddings_are_shared_or_gradients_are_clipped_together(
    trained: Callable[..., Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OptimConfig, "eps", 1e-30)
    assert changed(*(trained("es", lambda2=lambda2, gradient_clipping=0.0) for lambda2 in (1.0, 64.0)))
    # clipping scales all gradients of a step alike, but differently at each step
    assert changed(*(trained("gdes", lambda2=lambda2, gradient_clipping=1.0) for lambda2 in (1.0, 64.0)))


LR, BETAS = 1e-3, (0.9, 0.999)


def second_phase(
    shards: Path, folder: Path, steps: int, *overrides: str, **changes: object
) -> tuple[EngineState, EngineState]:
    """The states at the start and at the end of a run with a constant batch and a schedule of its own."""
    schedule = (f"optim.steps={steps}", "optim.warmup_steps=0", f"optim.lr={LR}", "batch_size=4", *overrides)
    with built(options(shards, folder, set=(*schedule, "evaluate_sequences=4"), **changes)) as training:
        first = training.engine.full_state()
        assert training.train() == 0
    saved = newest_valid(folder / CHECKPOINTS)
    assert saved is not None
    return first, load(saved)[0]


@pytest.mark.parametrize("correction", [True, False])
def test_the_first_update_of_a_second_phase_is_adams_next(
    correction: bool, shards_folder: Path, tmp_path: Path
) -> None:
    """Adam's next update by hand, from the moments after it; without a bias correction, electra's."""
    switch = f"optim.adam_bias_correction={str(correction).lower()}"
    _, saved = second_phase(shards_folder, tmp_path / "one", 3, switch)
    kept = {"init_from": (str(tmp_path / "one"),), "keep_optimizer": True}
    first, then = second_phase(shards_folder, tmp_path / "two", 1, switch, "seed=1", **kept)
    assert first.adam_steps == saved.adam_steps == 3 and then.adam_steps == 4
    assert second_phase(shards_folder, tmp_path / "two", 1, switch, "seed=1", **kept)[1].adam_steps == 4  # resumes
    c1, c2 = (1 - beta**4 if correction else 1.0 for beta in BETAS)
    for name, weight in saved.weights.items():
        m, v = (then.moments[key][name].double() for key in MOMENTS)
        gradient = (m - BETAS[0] * saved.moments["exp_avg"][name].double()) / (1 - BETAS[0])
        before = saved.moments["exp_avg_sq"][name].double()
        assert torch.allclose(v, BETAS[1] * before + (1 - BETAS[1]) * gradient**2, rtol=1e-3, atol=1e-12), name
        decayed = weight.double() * (1 - LR * 0.01 * decays(name))
        expected = decayed - LR * (m / c1) / ((v / c2).sqrt() + 1e-6)
        assert torch.allclose(then.weights[name].double(), expected, rtol=1e-6, atol=1e-7), name
