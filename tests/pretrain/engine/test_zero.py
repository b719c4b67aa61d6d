"""Claims about the back ends under DeepSpeed that need one process; engine_worker.py covers two."""

import subprocess
import sys

import deepspeed
import pytest
from torch import nn

from pretrain.engine.deepspeed_patches import patch_modules
from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups
from pretrain.engine.zero import Zero12
from pretrain.job.processes import start_processes
from tests.conftest import REPOSITORY
from tests.pretrain.engine import engine_worker as worker


@pytest.mark.parametrize(("name", "hooks"), [("zero1_bf16", 0), ("zero1_fp32", 0), ("zero2_bf16", 2)])
def test_one_process_neither_overlaps_nor_hooks_what_it_need_not_reduce(name: str, hooks: int) -> None:
    """With an overlap, DeepSpeed waits for the device after each backward."""
    model, world = nn.Linear(3, 5), start_processes()
    config = worker.resolved_config(name, world_size=1, zero_optimization={"overlap_comm": True})
    zero = Zero12(model, parameter_groups(model, 0.01), config, world).engine.optimizer
    assert not zero.overlap_comm
    assert len(zero._grad_acc_hooks) == hooks


def test_each_parameter_starts_at_a_multiple_of_16_bytes_which_changes_neither_losses_nor_checkpoints() -> None:
    """A run may resume with the other setting. Second moments differ in last bits: AdamW's vectors end elsewhere."""
    world, losses, states = start_processes(), [], []
    for aligned in (True, False):
        model = worker.small_model()
        changes = {} if aligned else {"parameter_alignment": False}
        config = worker.resolved_config("zero1_bf16", world_size=1, zero_optimization=changes)
        engine = Engine(model, parameter_groups(model, 0.01), config, world)
        assert aligned == all(parameter.data_ptr() % 16 == 0 for parameter in model.parameters())
        losses.append(worker.Runner(engine).train(range(3)))
        states.append(engine.full_state())
    assert losses[0] == losses[1]
    engine.load_full_state(states[0])
    assert worker.same_states(states[0], engine.full_state())


def test_no_start_tries_which_of_deepspeeds_own_kernels_could_be_compiled() -> None:
    patch_modules(start_processes())
    assert vars(deepspeed.ops)["__compatible_ops__"] == {}


OF_SIXTEEN = """
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import World
from tests.pretrain.engine import engine_worker as worker

class Collectives(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "c10d":
            tensors = [part for part in tree_leaves(arguments) if isinstance(part, torch.Tensor)]
            print(function.overloadpacket.__name__.strip("_"), max(part.nbytes for part in tensors))
        return function(*arguments, **(options or {}))

torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=16)
worker.BATCH = 16 * worker.MICRO_BATCH
model, world = worker.small_model(), World(0, 16, torch.device("cpu"))
engine = Engine(model, parameter_groups(model, 0.01), worker.resolved_config("zero1_bf16", 16), world)
print(*(weights.nbytes for weights in engine.backend.engine.optimizer.bit16_groups_flat))
ids, real = worker.batch_of(0)
with Collectives():
    engine.backward(engine.forward(ids[: worker.MICRO_BATCH], real[: worker.MICRO_BATCH])["loss_sum"])
    engine.update(1e-3)
"""


def test_a_step_of_16_ranks_reduces_and_gathers_each_group_at_once() -> None:
    """With a group of ranks that do not exist: two groups of 48 parameters, and the norm."""
    done = subprocess.run(
        [sys.executable, "-c", OF_SIXTEEN], cwd=REPOSITORY, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    sizes, *calls = done.stdout.splitlines()
    groups = sizes.split()
    reduced, gathered = ([f"{name} {size}" for size in groups] for name in ("reduce_scatter_base", "allgather_base"))
    assert calls == [*reduced, "allreduce 8", *gathered]
