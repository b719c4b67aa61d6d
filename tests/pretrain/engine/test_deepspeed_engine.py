"""pretrain/engine/deepspeed_engine.py: parameters partitioned by stage 3 are gathered again."""

import deepspeed
import pytest
import torch
from torch import nn

from pretrain.engine import deepspeed_engine
from pretrain.engine.engine import MOMENTS
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import start_processes
from tests.pretrain.engine import engine_worker as worker


@torch.no_grad()
def test_partitioned_parameters_are_gathered_as_a_whole() -> None:
    """Covers one rank; engine_worker.py covers two ranks with padded partitions."""
    model, world = nn.Linear(3, 5), start_processes()
    config = worker.resolved_config("zero3_fp32", world_size=1)
    engine = deepspeed_engine.start(model, parameter_groups(model, 0.01), config, world)
    for master in engine.optimizer.fp32_partitioned_groups_flat:
        engine.basic_optimizer.state[master] |= {key: torch.zeros_like(master) for key in MOMENTS}
    for moment in (None, *MOMENTS):
        full = torch.randn(5, 3)
        deepspeed_engine.divide(model.weight, moment, full, world)
        assert torch.equal(deepspeed_engine.whole(model.weight, moment), full)


@pytest.mark.parametrize(("name", "hooks"), [("zero1_bf16", 0), ("zero1_fp32", 0), ("zero2_bf16", 2)])
def test_one_process_neither_overlaps_nor_hooks_what_it_need_not_reduce(name: str, hooks: int) -> None:
    """With an overlap, DeepSpeed waits for the device after each backward."""
    model, world = nn.Linear(3, 5), start_processes()
    config = worker.resolved_config(name, world_size=1, zero_optimization={"overlap_comm": True})
    zero = deepspeed_engine.start(model, parameter_groups(model, 0.01), config, world).optimizer
    assert not zero.overlap_comm
    assert len(zero._grad_acc_hooks) == hooks


def test_no_start_tries_which_of_deepspeeds_own_kernels_could_be_compiled() -> None:
    deepspeed_engine.patch_modules(start_processes())
    assert vars(deepspeed.ops)["__compatible_ops__"] == {}
