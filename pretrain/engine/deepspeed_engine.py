"""Starts DeepSpeed's engine, and reads and sets the parameters that its stage 3 partitions.

Imported only for jobs that need DeepSpeed (`plain.is_enough`).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.job.processes import World

# With the accelerator given, DeepSpeed neither searches for one nor warns that it found none.
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed requires it even in a single process
import deepspeed
import deepspeed.utils as sharded

from pretrain.engine.deepspeed_patches import patch_engine, patch_modules


def start(
    model: nn.Module, parameter_groups: Sequence[Mapping[str, Any]], config: EngineConfig, world: World
) -> deepspeed.DeepSpeedEngine:
    """Returns the model under DeepSpeed's engine. Collective."""
    settings = config.json if config.stage else config.json | {"gradient_clipping": 0.0}  # `Engine._clip_replicated`
    if world.world_size == 1 and config.stage in (1, 2):  # nothing to reduce: no second stream, no buffer, no wait, and
        alone = {"overlap_comm": False, "contiguous_gradients": False}  # at stage 1 no hook on any gradient
        settings = settings | {"zero_optimization": settings["zero_optimization"] | alone}
    patched = patch_modules(world)
    deepspeed.init_distributed(dist_init_required=False, verbose=False)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[{**group, "params": list(group["params"])} for group in parameter_groups],
        config=settings,
    )
    if patched:
        patch_engine(engine, world)
    return engine


def whole(parameter: nn.Parameter, moment: str | None) -> Tensor:
    """Returns a stage-3 parameter in fp32, or one of its moments, in full, from all ranks' parts. Collective."""
    if moment:
        return sharded.safe_get_full_optimizer_state(parameter, moment)
    return sharded.safe_get_full_fp32_param(parameter)


def divide(parameter: Any, moment: str | None, full: Tensor, world: World) -> None:
    """Sets this rank's part of a stage-3 parameter, or of one of its moments, from the `full` tensor. Collective."""
    size = parameter.ds_tensor.numel()
    padded = F.pad(full.flatten(), (0, size * world.world_size - full.numel()))  # DeepSpeed's setters do not pad
    part = padded.narrow(0, size * world.rank, size)
    if moment:
        sharded.safe_set_local_optimizer_state(parameter, part, moment)
        return
    sharded.safe_set_local_fp32_param(parameter, part)
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        parameter.copy_(full)
