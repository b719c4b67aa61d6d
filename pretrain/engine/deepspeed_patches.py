"""Every change to DeepSpeed's insides: they save time or memory, and are made only to the version they were tested on.

Under any other version none is made, with one warning: training goes on within rounding, only slower. After an upgrade
compare each with DeepSpeed's source, measure it again, and set `TESTED`.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import stage_1_and_2
from torch import Tensor

from pretrain.engine.gradients import squared_norm
from pretrain.engine.partitions import pieces
from pretrain.job.processes import World

TESTED = "0.19.8"
"""DeepSpeed's version."""


@functools.cache
def patch_modules(world: World) -> bool:
    """Changes what DeepSpeed's engines are made of, before the first of them; `False` under an untested version."""
    if deepspeed.__version__ != TESTED:
        if world.is_first:
            print(
                f"WARNING: deepspeed {deepspeed.__version__} is not {TESTED}, for which"
                " pretrain/engine/deepspeed_patches.py makes training faster: this run is slower; use"
                f" deepspeed=={TESTED}",
                flush=True,
            )
        return False
    # A kernel for inference, compiled at the first start on a CPU: 26 s on two cores.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # Every ZeRO optimizer imports Muon, which hands its functions to torch.compile: 1.3 of the 4.7 s of processor time
    # that a process takes to import torch and DeepSpeed and make an optimizer (docs/evidence/scaling.md).
    deepspeed.runtime.compiler.compile = lambda: deepspeed.runtime.compiler.dummy_decorator
    # `Engine` sends the first rank's weights itself, in full precision. For base in bf16 on 4 ranks (ZeRO-1, two busy
    # cores) the broadcast took 9 of an engine's 59 s, and 479 of the 1,018 MB that the first rank sent.
    deepspeed.DeepSpeedEngine._broadcast_model = lambda _: None
    if not torch.cuda.is_available():
        stage_1_and_2.all_gather_dp_groups = _all_gather
    # torch 2.13 renames two collectives that DeepSpeed calls by their old names; they work.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    return True


def patch_engine(engine: Any, world: World) -> None:
    """Changes one of DeepSpeed's engines: it leaves out what a step does not need.

    A single process has nothing to sum, for which DeepSpeed copies every gradient together and back. At stages 1 and 2
    it asks each gradient whether all of it is finite, and then takes a norm, which says so too. Both cost a step 5 to
    12% on a CPU; for small in bf16 they are 5,764 of 9,197 operations, each a kernel on a GPU
    (docs/evidence/scaling.md).
    """
    alone, zero, stage = world.world_size == 1, engine.optimizer, engine.zero_optimization_stage()
    if stage in (1, 2) and not zero.cpu_offload:
        zero.check_overflow = lambda **_: None
        zero.scaled_global_norm = lambda: _norm_over_ranks(zero, world)
        if alone:
            zero.contiguous_gradients = False
            zero.buffered_reduce_fallback = lambda *_, **__: None


def _all_gather(
    groups_flat: Sequence[Tensor],
    partitioned_param_groups: Sequence[Sequence[Tensor]],
    dp_process_group: Sequence[dist.ProcessGroup],
    **_: Any,
) -> None:
    """Gathers the ranks' updated parts of each flat group on every rank, piece by piece; DeepSpeed's own arguments.

    Where DeepSpeed gathers a group at once gloo copies it: a quarter of a gigabyte on every rank for base.
    """
    for parts, group in zip(partitioned_param_groups, dp_process_group, strict=True):
        own = parts[dist.get_rank(group)]
        for piece in pieces(own, len(parts)) if len(parts) > 1 else ():
            dist.all_gather([part[piece] for part in parts], own[piece], group)


def _norm_over_ranks(zero: Any, world: World) -> Tensor:
    """Of the parts that each rank holds at stages 1 and 2, on the host, where DeepSpeed reads it. Collective."""
    gradients = [gradient for group in zero.averaged_gradients.values() for gradient in group]
    total = squared_norm(gradients).to(world.device)
    dist.all_reduce(total)
    return total.sqrt().float().cpu()
