"""DeepSpeed itself: its engine started, and the parameters that its stage 3 has divided; imported only for a job that
needs it (`plain.is_enough`).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.job.processes import World

# Told what it runs on, DeepSpeed neither searches for accelerators nor warns that it found none.
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
os.environ.setdefault("LOCAL_RANK", "0")  # it asks for it even when alone
import deepspeed
import deepspeed.utils as sharded

from pretrain.engine.deepspeed_patches import patch_engine, patch_modules


def start(
    model: nn.Module, parameter_groups: Sequence[Mapping[str, Any]], config: EngineConfig, world: World
) -> deepspeed.DeepSpeedEngine:
    """A model under DeepSpeed. Collective."""
    clipping = {} if config.stage else {"gradient_clipping": 0.0}  # see `Engine._clip_replicated`
    patched = patch_modules(world)
    deepspeed.init_distributed(dist_init_required=False, verbose=False)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[{**group, "params": list(group["params"])} for group in parameter_groups],
        config=config.json | clipping,
    )
    if patched:
        patch_engine(engine, world)
    return engine


def whole(parameter: nn.Parameter, moment: str | None) -> Tensor:
    """A parameter of stage 3, or its moment, of all ranks' parts. Collective."""
    if moment:
        return sharded.safe_get_full_optimizer_state(parameter, moment)
    return sharded.safe_get_full_fp32_param(parameter)


def divide(parameter: Any, moment: str | None, full: Tensor, world: World) -> None:
    """Sets this rank's part of a parameter of stage 3, or of its moment. Collective."""
    size = parameter.ds_tensor.numel()
    padded = F.pad(full.flatten(), (0, size * world.world_size - full.numel()))  # which DeepSpeed's setters forget
    part = padded.narrow(0, size * world.rank, size)
    if moment:
        sharded.safe_set_local_optimizer_state(parameter, part, moment)
        return
    sharded.safe_set_local_fp32_param(parameter, part)
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        parameter.copy_(full)
