"""All patches to DeepSpeed's internals. They save time or memory, and apply only to the version they were tested on.

With any other version none is applied, and a warning is printed: results are the same within rounding, but training is
slower. After an upgrade, compare each patch with DeepSpeed's source, measure it again, and set `TESTED`.
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

from pretrain.engine.plain import squared_norm
from pretrain.job.processes import World

TESTED = "0.19.8"
"""The DeepSpeed version that the patches were tested on."""
AT_ONCE = 2**24
"""Values per all-gather, over all ranks: 64 MB of fp32."""


@functools.cache
def patch_modules(world: World) -> bool:
    """Patches DeepSpeed's modules before the first engine is made; returns `False` with an untested version."""
    if deepspeed.__version__ != TESTED:
        if world.is_first:
            print(
                f"WARNING: deepspeed {deepspeed.__version__} is not {TESTED}, the version that"
                " pretrain/engine/deepspeed_patches.py speeds up: this run is slower; use"
                f" deepspeed=={TESTED}",
                flush=True,
            )
        return False
    # Otherwise DeepSpeed tries at each start which of its own kernels could be compiled, though training uses none; a
    # CPU compiles one for inference at its first start: 26 s.
    deepspeed.ops.__compatible_ops__ = {}
    # Every ZeRO optimizer imports Muon, which passes its functions to torch.compile: 1.3 of the 4.7 s of CPU time that
    # a process takes to import torch and DeepSpeed and make an optimizer (docs/evidence/speed.md).
    deepspeed.runtime.compiler.compile = lambda: deepspeed.runtime.compiler.dummy_decorator
    # `Engine` sends the first rank's weights itself, in full precision. For base in bf16 on 4 ranks (ZeRO-1, two busy
    # cores) the broadcast took 9 of an engine's 59 s, and 479 of the 1,018 MB that the first rank sent.
    deepspeed.DeepSpeedEngine._broadcast_model = lambda _: None
    if not torch.cuda.is_available():
        stage_1_and_2.all_gather_dp_groups = _all_gather
    # torch 2.13 renames two collectives; DeepSpeed uses the old names, which still work.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    return True


def patch_optimizer(zero: Any, world: World) -> None:
    """Patches DeepSpeed's optimizer of stages 1 and 2, without offload, to skip work that a step does not need.

    In a single process there is nothing to sum over ranks, yet DeepSpeed copies every gradient into a buffer and back.
    It also checks each gradient for non-finite values and then computes the norm, which would show them too. Together
    they take 5 to 12% of a step on a CPU; for the small model in bf16 they are 5,764 of 9,197 operations, each a kernel
    on a GPU (docs/evidence/speed.md).
    """
    zero.check_overflow = lambda **_: None
    zero.scaled_global_norm = lambda: _norm_over_ranks(zero, world)
    if world.world_size == 1:
        zero.buffered_reduce_fallback = lambda *_, **__: None


def _all_gather(
    groups_flat: Sequence[Tensor],
    partitioned_param_groups: Sequence[Sequence[Tensor]],
    dp_process_group: Sequence[dist.ProcessGroup],
    **_: Any,
) -> None:
    """Replaces DeepSpeed's function, with its signature: all-gathers each flat group's updated parts in pieces.

    DeepSpeed gathers a whole group at once, which gloo copies: a quarter of a gigabyte on every rank for base size.
    """
    for parts, group in zip(partitioned_param_groups, dp_process_group, strict=True):
        own = parts[dist.get_rank(group)]
        size = max(1, AT_ONCE // len(parts))
        for pieces in zip(*(part.split(size) for part in (own, *parts)), strict=True) if len(parts) > 1 else ():
            dist.all_gather(list(pieces[1:]), pieces[0], group)


def _norm_over_ranks(zero: Any, world: World) -> Tensor:
    """Returns the global gradient norm at stages 1 and 2, from each rank's parts; on the CPU, where DeepSpeed reads it.

    Collective.
    """
    gradients = [gradient for group in zero.averaged_gradients.values() for gradient in group]
    total = squared_norm(gradients).to(world.device)
    dist.all_reduce(total)
    return total.sqrt().float().cpu()
