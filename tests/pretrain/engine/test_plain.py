"""Claims about plain PyTorch, bitwise what DeepSpeed does for one process at stage 0, and about the gradient norm."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups, without_bias_correction
from pretrain.engine.plain import CHUNK, Plain, is_enough, squared_norm
from pretrain.job.processes import World, start_processes
from tests.deepspeed_values import values_of
from tests.pretrain.engine import engine_worker as worker

FOR_DEEPSPEED: dict[str, Any] = {"flops_profiler": {"enabled": False}}
"""A key without effect that plain PyTorch does not support, so that DeepSpeed is used."""
SPOILED = 4
"""The step whose second micro-batch has no finite loss."""


def make_engine(**keys: Any) -> Engine:
    values = values_of("zero0_fp32") | {"train_micro_batch_size_per_gpu": worker.MICRO_BATCH} | keys
    config = resolve(values, batch_size=worker.BATCH, world_size=1, device_type="cpu", optim=worker.OPTIM)
    model = worker.small_model()
    groups = parameter_groups(model, worker.OPTIM.weight_decay, lambda name: 0.5 if "generator" in name else 1.0)
    engine = Engine(model, groups, config, start_processes())
    assert is_enough(config, engine.world) == isinstance(engine.backend, Plain)
    return engine


def train(engine: Engine, steps: range) -> list[tuple[bool, float]]:
    """Results of the updates; one overflows, and one uses google-research/electra's variant of Adam."""
    results = []
    for step in steps:
        ids, real = worker.batch_of(step)
        for micro in range(engine.config.accumulation_steps):
            rows = slice(micro * worker.MICRO_BATCH, (micro + 1) * worker.MICRO_BATCH)
            spoil = float("nan") if (step, micro) == (SPOILED, 1) else 1.0
            engine.backward(engine.forward(ids[rows], real[rows])["loss_sum"] * spoil)
        scale = [without_bias_correction(step, worker.OPTIM.betas)] if step == 1 else []
        result = engine.update(worker.rate(step), *scale)
        results.append((result.overflow, float(result.gradient_norm)))
    return results


@pytest.mark.parametrize("keys", [{}, {"activation_checkpointing": {}}], ids=["plain", "recomputed"])
def test_one_process_trains_bitwise_as_under_deepspeed(keys: dict[str, Any]) -> None:
    plain, deepspeed = make_engine(**keys), make_engine(**keys, **FOR_DEEPSPEED)
    assert not isinstance(deepspeed.backend, Plain)
    results = train(plain, range(8))
    assert results == train(deepspeed, range(8))
    assert [overflow for overflow, _ in results].index(True) == SPOILED
    assert worker.same_states(plain.full_state(), deepspeed.full_state())


def test_a_checkpoint_of_either_is_resumed_bitwise_by_the_other() -> None:
    plain, deepspeed = make_engine(), make_engine(**FOR_DEEPSPEED)
    train(plain, range(3))
    deepspeed.load_full_state(copy.deepcopy(plain.full_state()))
    assert train(plain, range(5, 7)) == train(deepspeed, range(5, 7))
    assert worker.same_states(plain.full_state(), deepspeed.full_state())


@pytest.mark.parametrize(
    ("name", "keys", "ranks"),
    [
        ("zero0_fp32", {}, 2),
        ("zero1_fp32", {}, 1),
        ("zero0_fp32", {"flops_profiler": {"enabled": True}}, 1),
    ],
    ids=["ranks", "stage", "profiler"],
)
def test_configurations_that_need_deepspeed_use_it(name: str, keys: dict[str, Any], ranks: int) -> None:
    values = values_of(name) | keys
    config = resolve(values, batch_size=worker.BATCH, world_size=ranks, device_type="cpu", optim=worker.OPTIM)
    assert not is_enough(config, World(0, ranks, 0, torch.device("cpu")))


def of_all_sizes(dtype: torch.dtype) -> list[Tensor]:
    shapes = [(), (0,), (3,), (7, 5), (CHUNK // 512, 512), (CHUNK // 512 + 1, 513)]
    return [torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_squares_are_summed_as_in_float64(dtype: torch.dtype) -> None:
    gradients = of_all_sizes(dtype)
    expected = torch.cat([gradient.flatten().double() for gradient in gradients]).square().sum()
    found = squared_norm(gradients)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_norm_does_not_depend_on_the_division_into_tensors() -> None:
    gradients = of_all_sizes(torch.bfloat16)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    shared = [squared_norm(list(flat.split(size))) for size in (1000, CHUNK - 1, len(flat))]
    assert {part.sqrt().float().item() for part in shared} == {squared_norm(gradients).sqrt().float().item()}


def test_a_non_contiguous_gradient_counts_the_same() -> None:
    gradient = torch.randn(64, 48)
    assert squared_norm([gradient.T]).item() == pytest.approx(squared_norm([gradient]).item(), rel=1e-14)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, CHUNK, CHUNK + 4])
def test_a_single_value_that_is_not_finite_is_noticed_anywhere(value: float, place: int) -> None:
    gradient = torch.zeros(CHUNK + 5, dtype=torch.bfloat16)
    gradient[place] = value
    assert not squared_norm([torch.ones(3, dtype=torch.bfloat16), gradient]).isfinite()


def test_the_largest_half_precision_values_do_not_overflow() -> None:
    largest = torch.full((10,), torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)
    assert squared_norm([largest]).item() == pytest.approx(10 * float(largest[0]) ** 2, rel=1e-12)


def test_the_norm_of_no_gradients_is_zero() -> None:
    assert squared_norm([]) == 0
