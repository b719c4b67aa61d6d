"""Claims about the engine on one and two ranks, at every stage and precision (engine_worker.py), and of its steps."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_sampler.foundation.config import ConfigError
from pretrain.engine.checkpoint import Checkpoint, load, save
from pretrain.engine.engine import Engine, accumulate, end_step, resume
from pretrain.engine.optim import parameter_groups, without_bias_correction
from pretrain.job.processes import start_processes
from tests.deepspeed_values import VARIANTS
from tests.pretrain.engine import engine_worker as worker
from tests.warm import Warm, outputs, two_ranks

Figures = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the ranks' figures: one process saves, two resume from it and save."""
    folder = tmp_path_factory.mktemp("engine")
    for ranks, start in ((1, lambda *given: [Warm(*given)]), (2, two_ranks)):
        said = outputs(start(worker.__file__, folder), 400)
        (folder / f"output-{ranks}").write_text("".join(said))
    return folder


def figures_of(folder: Path, ranks: int) -> Figures:
    figures: Figures = json.loads((folder / f"ranks-{ranks}" / "figures.json").read_text())
    return figures


@pytest.fixture(scope="module")
def two(folder: Path) -> Figures:
    """Figures of two ranks."""
    return figures_of(folder, 2)


@pytest.fixture(scope="module")
def one(folder: Path) -> Figures:
    """Figures of one process."""
    return figures_of(folder, 1)


def assert_exact(figures: Figures) -> None:
    """A new engine resumed bitwise from a checkpoint, and a NaN on one rank changed no weight on any."""
    assert figures["resumed"] == figures["losses"][worker.SAVED_AT :] and figures["same_end"]
    assert figures["spoiled"] == {"overflow": True, "unchanged": True}


@pytest.fixture(scope="module")
def plain() -> list[float]:
    """Losses without DeepSpeed."""
    return worker.plain_losses()


@pytest.mark.parametrize(
    ("name", "rounding"), [*((name, 1e-6) for name in worker.FP32), *((name, 2e-2) for name in worker.BF16)]
)
def test_every_stage_trains_like_one_plain_process_on_the_whole_batch_and_in_bf16_up_to_rounding(
    two: Figures, plain: list[float], name: str, rounding: float
) -> None:
    assert two["train"][name]["losses"] == pytest.approx(plain, rel=rounding)
    assert plain[-1] < 0.6 * plain[0]  # otherwise nothing was learned and the agreement means little


@pytest.mark.parametrize("name", worker.ALONE)
def test_one_process_trains_like_two(one: Figures, two: Figures, plain: list[float], name: str) -> None:
    losses = one["train"][name]["losses"]
    if name in worker.FP32:
        assert losses == pytest.approx(plain, rel=1e-6)
    assert losses == pytest.approx(two["train"][name]["losses"], rel=2e-2)


@pytest.mark.parametrize("name", worker.MUON)
def test_muon_moves_whole_matrices_at_every_stage_and_resumes_bitwise(two: Figures, one: Figures, name: str) -> None:
    whole = one["muon"]["zero0_fp32"]["losses"]
    assert max(abs(a / b - 1) for a, b in zip(whole, one["train"]["zero0_fp32"]["losses"], strict=True)) > 1e-3
    for figures in (job["muon"][name] for job in (two, one) if name in job["muon"]):
        assert figures["losses"] == pytest.approx(whole, rel=1e-6 if name in worker.FP32 else 2e-2)
        assert_exact(figures)


@pytest.mark.parametrize("name", worker.RECOMPUTED)
def test_activation_checkpointing_changes_no_bit(two: Figures, name: str) -> None:
    assert two["recomputed"][name] == two["train"][name]["losses"][:2]


@pytest.mark.parametrize("name", worker.VARIANTS)
def test_overrides_for_memory_and_time_change_no_loss(two: Figures, name: str) -> None:
    plain = name.rpartition("_")[0]
    assert two["variants"][name] == pytest.approx(two["train"][plain]["losses"][: worker.SAVED_AT], rel=1e-3)


def test_every_shipped_file_and_every_variant_was_used(two: Figures) -> None:
    files = {path.stem for path in (worker.REPOSITORY / "ds_configs").glob("*.json")}
    assert two["train"].keys() | two["variants"].keys() == files | VARIANTS.keys()


@pytest.mark.parametrize("name", (*worker.FP32, *worker.BF16, *worker.FP16))
def test_an_engine_starts_with_the_models_own_weights_resumes_bitwise_and_ignores_a_nan_on_one_rank(
    two: Figures, one: Figures, name: str
) -> None:
    for figures in (job for job in (two, one) if name in job["train"]):
        assert figures["first"][name]["same_start"]
        assert_exact(figures["train"][name])


@pytest.mark.parametrize("name", worker.FP32)
def test_another_world_size_resumes_up_to_rounding(two: Figures, folder: Path, plain: list[float], name: str) -> None:
    continued = worker.continue_from(name, start_processes(), folder / "ranks-2")
    assert continued == pytest.approx(plain[worker.SAVED_AT :], rel=1e-6)
    if name == "zero1_fp32":
        assert two["continued"][name] == pytest.approx(plain[worker.SAVED_AT :], rel=1e-6)


@pytest.mark.parametrize("name", (*worker.FP32, *worker.BF16))
def test_the_first_update_of_adam_is_the_learning_rate(two: Figures, name: str) -> None:
    assert two["first"][name]["update"] == pytest.approx(1.0, abs=1e-3)


def test_it_starts_so_under_every_override_and_at_stage_3_in_fp16(two: Figures) -> None:
    assert two["starts"] == dict.fromkeys((*worker.VARIANTS, "zero3_fp16"), True)


def test_the_loss_scale_halves_at_an_overflow_doubles_after_good_steps_and_stops_at_its_floor(
    two: Figures, one: Figures
) -> None:
    stories = two["scales"]
    assert one["scales"] == stories
    assert stories["falling"] == {
        "overflow": [True] * 4 + [False] * 2,
        "loss_scale": [4, 2, 1, 1, 1, 1],
        "fatal": [False, False, True, True, False, False],
    }
    assert stories["patient"]["loss_scale"] == [4, 4, 2, 1, 1, 1]  # the first overflow is tolerated
    assert stories["growing"]["loss_scale"] == [4, 4, 4, 8, 4, 4, 4, 8]
    assert stories["fixed"] == {
        "overflow": [False, True, False],
        "loss_scale": [64.0] * 3,
        "fatal": [False, True, False],
    }
    assert stories["loss"]["overflow"] == [False, True, False], "a loss that is not finite updates nothing"


def test_a_checkpoint_holds_each_parameter_once_at_any_stage(two: Figures) -> None:
    expected = sorted(name for name, _ in worker.small_model().named_parameters())
    assert sum("word_embeddings" in name for name in expected) == 1
    assert all(figures["names"] == expected for figures in two["train"].values())


@pytest.mark.parametrize("name", worker.FP32)
def test_a_learning_rate_scale_of_zero_leaves_its_parameters_unchanged(two: Figures, name: str) -> None:
    for parameter, frozen in two["frozen"][name]["frozen"].items():
        assert frozen == parameter.startswith("generator.encoder"), parameter


def test_a_value_is_shared_from_the_first_rank(two: Figures) -> None:
    assert two["shared"] == [{"rank": 0}, {"rank": 0}]


def test_deepspeed_prints_nothing_between_our_lines(folder: Path) -> None:
    for ranks in (1, 2):
        said = (folder / f"output-{ranks}").read_text()
        assert not any(word in said for word in ("INFO", "Warning", "untested"))


def make_engine(seed: int = 0) -> Engine:
    model = worker.small_model(seed)
    config = worker.resolved_config("zero1_fp32", world_size=1)
    return Engine(model, parameter_groups(model, 0.01), config, start_processes())


def test_adams_hyperparameters_are_scaled_for_one_update_only() -> None:
    """Without bias correction the first update is (1 - beta1) / sqrt(1 - beta2) = 3.16 times the rate."""
    engine = make_engine()
    start = engine.full_state().weights
    accumulate(engine, losses_of(engine, 0))
    engine.update(1e-3, without_bias_correction(0, worker.OPTIM.betas))
    change = worker.largest_change(start, engine.full_state().weights)
    assert change == pytest.approx(1e-3 * 0.1 / 0.001**0.5, rel=1e-3)
    worker.Runner(engine).step(0)
    assert {group["eps"] for group in engine.backend.adam.param_groups} == {worker.OPTIM.eps}


def test_a_checkpoint_of_another_model_is_refused_by_name(folder: Path) -> None:
    state, _ = load(Checkpoint(next((folder / "ranks-2" / "zero1_fp32").iterdir()), worker.SAVED_AT))
    engine = make_engine()
    state.weights["head.weight"] = torch.zeros(1, 15)
    with pytest.raises(ConfigError, match=r"differs from this model in 1 parameter, first head\.weight"):
        engine.load_full_state(state)


@pytest.mark.parametrize("name", ["zero1_fp16", "zero3_bf16"])
def test_a_checkpoint_of_another_precision_and_stage_is_resumed(folder: Path, name: str) -> None:
    state, _ = load(Checkpoint(next((folder / "ranks-2" / name).iterdir()), worker.SAVED_AT))
    engine = make_engine(seed=1)
    engine.load_full_state(state)
    assert worker.same_states(engine.full_state(), replace(state, loss_scale={}))
    loss, result = worker.Runner(engine).step(worker.SAVED_AT)
    assert (result.overflow, result.loss_scale) == (False, 1)
    assert loss < 60


@dataclass
class Steps:
    """Progress of a run."""

    done: int = 0


def losses_of(engine: Engine, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Losses as computed in `worker.Runner`."""
    ids_BL, real_BL = worker.batch_of(step)
    for rows in zip(ids_BL.split(worker.MICRO_BATCH), real_BL.split(worker.MICRO_BATCH), strict=True):
        loss_sum = engine.forward(*rows)["loss_sum"]
        yield loss_sum * engine.config.accumulation_steps / real_BL.sum(), loss_sum.detach() / real_BL.sum()


def test_a_step_is_one_update_by_the_mean_over_its_micro_batches_and_returns_the_wishes_during_it() -> None:
    engine, other = make_engine(), make_engine()
    assert engine.config.accumulation_steps > 1
    for step, wish in enumerate((False, True, False)):
        total = accumulate(engine, losses_of(engine, step))
        result, (loss, *wishes) = end_step(engine, total, [wish, False], worker.rate(step)).read()
        assert loss == pytest.approx(worker.Runner(other).step(step)[0], rel=1e-6)
        assert (result.overflow, wishes) == (False, [wish, False])
    assert engine.full_state().adam_steps == 3
    assert worker.same_states(engine.full_state(), other.full_state())


def test_a_resume_loads_engine_and_progress_and_changes_nothing_without_a_checkpoint(tmp_path: Path) -> None:
    trained, fresh = make_engine(), make_engine(seed=1)
    worker.Runner(trained).train(range(2))
    start = fresh.full_state()
    assert resume(tmp_path, fresh, Steps) == Steps(0)
    assert worker.same_states(fresh.full_state(), start)
    save(tmp_path, 2, trained.full_state(), {"done": 2}, keep_last=1)
    assert resume(tmp_path, fresh, Steps) == Steps(2)
    assert worker.same_states(fresh.full_state(), trained.full_state())
