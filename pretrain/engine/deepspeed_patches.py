"""All patches to DeepSpeed's internals. The first keeps it from talking to users, with any version. The others save
time, and are applied only to the version that they were tested on.

With any other version they are not applied, and a warning is printed: results are the same within rounding, but
training is slower. After an upgrade, compare each patch with DeepSpeed's source, measure it again, and set `TESTED`.
"""

import functools
import warnings
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.engine.muon import MuonAndAdamW
from pretrain.engine.plain import squared_norm
from pretrain.job.processes import World

TESTED = "0.19.8"
"""The DeepSpeed version that the patches were tested on."""


@functools.cache
def patch_modules(world: World) -> bool:
    """Patches DeepSpeed's modules before the first engine is made; returns `False` with an untested version."""
    # Any version: otherwise each start warns of an optimizer that ZeRO does not know.
    deepspeed.runtime.zero.utils.ZERO_SUPPORTED_OPTIMIZERS.append(MuonAndAdamW)
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
    # torch 2.13 renames two collectives; DeepSpeed uses the old names, which still work.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    return True


def patch_optimizer(zero: Any, world: World, waits: bool) -> None:
    """Patches DeepSpeed's optimizer of stages 1 and 2, without offload, to skip work that a step does not need.

    It checks each gradient for non-finite values and then computes the norm, which would show them too: several
    operations per parameter. After each update it sets every parameter to the view that it already is: 4 of the 8 ms of
    host time of an update of 407 parameters.

    Unless it `waits`, the host does not read the norm: it stays on the device, where AdamW changes nothing if
    `found_inf` is 1.
    """
    zero.check_overflow = lambda **_: None
    zero._update_model_bit16_weights = lambda _: None
    zero.scaled_global_norm = lambda: _norm_over_ranks(zero, world, waits)
    if not waits:
        zero.check_grad_overflow = False
        largest = zero.clip_grad or float("inf")  # by the numbers that DeepSpeed multiplies by
        zero.unscale_and_clip_grads = lambda gradients, norm: torch._foreach_mul_(
            gradients, 1.0 / ((norm + 1e-6) / largest).clamp(min=1.0)
        )


def _norm_over_ranks(zero: Any, world: World, waits: bool) -> Tensor:
    """Returns the global gradient norm at stages 1 and 2, from each rank's parts; if it `waits`, on the CPU, where
    DeepSpeed reads it. Collective.
    """
    gradients = [gradient for group in zero.averaged_gradients.values() for gradient in group]
    total = squared_norm(gradients).to(world.device)
    dist.all_reduce(total)
    norm = total.sqrt().float()
    if waits:
        return norm.cpu()
    zero.optimizer.found_inf = (~norm.isfinite()).float()
    return norm
