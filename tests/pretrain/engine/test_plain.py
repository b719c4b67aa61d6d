"""pretrain/engine/plain.py: bitwise what DeepSpeed does for one process at stage 0, without DeepSpeed."""

import copy
from typing import Any

import pytest
import torch

from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups, without_bias_correction
from pretrain.engine.plain import is_enough
from pretrain.job.processes import World, start_processes
from tests.deepspeed_values import values_of
from tests.pretrain.engine import engine_worker as worker

FOR_DEEPSPEED = {"wall_clock_breakdown": False}
"""A key without effect that plain PyTorch does not support, so that DeepSpeed is used."""
SPOILED = 4
"""The step whose second micro-batch has no finite loss."""


def make_engine(**keys: Any) -> Engine:
    values = values_of("zero0_fp32") | {"train_micro_batch_size_per_gpu": worker.MICRO_BATCH} | keys
    config = resolve(values, batch_size=worker.BATCH, world_size=1, device_type="cpu", optim=worker.OPTIM)
    model = worker.small_model()
    groups = parameter_groups(model, worker.OPTIM.weight_decay, lambda name: 0.5 if "generator" in name else 1.0)
    engine = Engine(model, groups, config, start_processes())
    assert is_enough(config, engine.world) == (type(engine._deepspeed).__name__ == "PlainEngine")
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
    assert type(deepspeed._deepspeed).__name__ == "DeepSpeedEngine"
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
