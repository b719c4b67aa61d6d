"""The back ends under DeepSpeed: ZeRO stages 1 and 2, and stage 3.

Imported only for jobs at these stages: stage 0 needs no DeepSpeed. Each class reads private fields of DeepSpeed's
optimizer at its stage, as of the version in `constraints.txt`.
"""

import math
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.engine.muon import MuonAndAdamW, orthogonalized
from pretrain.engine.plain import Backend
from pretrain.job.processes import World

# With the accelerator given, DeepSpeed neither searches for one nor warns that it found none.
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed requires it even in a single process
import deepspeed
import deepspeed.utils as sharded

from pretrain.engine.deepspeed_patches import patch_modules, patch_optimizer

Groups = Sequence[Mapping[str, Any]]
"""The optimizer's parameter groups."""
SCALE_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""Attributes of DeepSpeed's dynamic loss scaler that change during training."""


class DeepSpeed(Backend):
    """Code shared by ZeRO's stages: DeepSpeed's engine runs forward, backward and update."""

    def __init__(self, model: nn.Module, groups: Groups, config: EngineConfig, world: World) -> None:
        self.world, self._patched = world, patch_modules(world)
        if world.device.index is not None:
            os.environ["LOCAL_RANK"] = str(world.device.index)  # DeepSpeed's device, whatever the launcher's number is
        deepspeed.init_distributed(dist_init_required=False, verbose=False)
        self.adam = MuonAndAdamW([{**group} for group in groups], fused=True)
        self.adam.orthogonal = self.orthogonal
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=self.adam, config={**config.json})
        self.module = self.engine.module
        scaler = self.engine.optimizer.loss_scaler
        scaler.raise_error_at_min_scale = False  # its error names no step; see `StepResult.fatal`
        self._scaler = scaler if scaler.dynamic else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.engine(*args, **kwargs)

    def backward(self, loss: Tensor, doubt: Tensor) -> None:
        self.engine.backward(loss * (1 + doubt))
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()  # counts the micro-batch; `update` ends the last one

    def update(self) -> Tensor | float:
        self.engine.step()
        return self.engine.get_global_grad_norm() if self.engine.was_step_applied() else float("inf")

    def gather(self, moment: str | None = None) -> dict[str, Tensor]:
        gathered = {}
        for name, parameter in self.module.named_parameters():
            full = (
                sharded.safe_get_full_optimizer_state(parameter, moment)
                if moment
                else sharded.safe_get_full_fp32_param(parameter)
            )
            if self.world.is_first:  # the other ranks hold one full tensor at a time
                gathered[name] = full.to("cpu", torch.float32, copy=True)
        return gathered

    def spread(self, named: Mapping[str, Tensor] | None, moment: str | None = None) -> None:
        for name, parameter in self.module.named_parameters():
            shape = getattr(parameter, "ds_shape", parameter.shape)
            full = (torch.empty(shape) if named is None else named[name]).to(self.world.device)
            dist.broadcast(full, src=0)
            self.divide(parameter, full, moment)

    @abstractmethod
    def orthogonal(self, master: Tensor, direction_S: Tensor, matrices: Sequence[int]) -> Tensor:
        """Gathers the direction from all ranks, orthogonalizes its matrices, and returns this rank's part, S values.

        Collective.
        """

    def all_parts(self, part_S: Tensor) -> Tensor:
        """Returns the parts of all ranks, one after the other, on the device. Collective."""
        parts = torch.empty(self.world.world_size * len(part_S), device=self.world.device)
        dist.all_gather_into_tensor(parts, part_S.to(self.world.device))
        return parts

    @abstractmethod
    def divide(self, parameter: Any, full: Tensor, moment: str | None) -> None:
        """Sets this rank's part of a parameter's master weights, or of one of its moments, from the `full` tensor."""

    @property
    def loss_scale(self) -> float:
        return float(self.engine.optimizer.loss_scale)

    @property
    def scale_is_final(self) -> bool:
        scaler = self._scaler
        return scaler is None or (
            scaler.cur_scale <= scaler.min_scale and 1 in (scaler.delayed_shift, scaler.cur_hysteresis)
        )

    def scale_state(self) -> dict[str, float]:
        return {key: getattr(self._scaler, key) for key in SCALE_FIELDS} if self._scaler else {}

    def load_scale_state(self, state: Mapping[str, float]) -> None:
        for key, value in state.items() if self._scaler else ():
            setattr(self._scaler, key, value)


class Zero12(DeepSpeed):
    """Each rank holds a part of Adam's state and of the fp32 weights, at stage 2 also of the gradients."""

    def __init__(self, model: nn.Module, groups: Groups, config: EngineConfig, world: World) -> None:
        zero = config.json["zero_optimization"]
        self._flat = config.stage == 1 and not config.overlaps and not config.offloads and patch_modules(world)
        if world.world_size == 1 or self._flat:  # nothing to reduce during a backward: no second stream, buffer, wait,
            zero = zero | {"overlap_comm": False, "contiguous_gradients": False}  # and at stage 1 no hook on a gradient
        super().__init__(model, groups, replace(config, json=config.json | {"zero_optimization": zero}), world)
        optimizer = self.engine.optimizer
        if self._patched and not optimizer.cpu_offload:
            # fp16 must know of an overflow before the next step; Muon, unlike PyTorch's AdamW, before it moves weights
            patch_optimizer(optimizer, world, waits=config.precision != "bf16" or any(g["matrices"] for g in groups))
        self.masters, sizes = optimizer.single_partition_of_fp32_groups, map(len, optimizer.bit16_groups_flat)
        self.layout = [
            *zip(optimizer.round_robin_bit16_groups, optimizer.round_robin_bit16_offsets, sizes, strict=True)
        ]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs) if self._flat else super().forward(*args, **kwargs)

    def backward(self, loss: Tensor, doubt: Tensor) -> None:
        if not self._flat:
            return super().backward(loss, doubt)
        return loss.backward(doubt + self.loss_scale / self.engine.gradient_accumulation_steps())

    def update(self) -> Tensor | float:
        """Ends a step by DeepSpeed's optimizer alone, if the gradient of each group is reduced as one flat tensor."""
        if not self._flat:
            return super().update()
        zero = self.engine.optimizer
        flats, _ = self.flattened()
        zero.averaged_gradients = {group: [self._own_part(flat)] for group, flat in enumerate(flats)}
        zero.step()
        if self.replayed:
            torch._foreach_zero_(flats)
        return float("inf") if zero.overflow else zero._global_grad_norm

    def _own_part(self, flat: Tensor) -> Tensor:
        """Returns this rank's part of the gradient's mean over the ranks. Collective."""
        if self.world.world_size == 1:
            return flat
        part = flat.new_empty(len(flat) // self.world.world_size)
        dist.reduce_scatter_tensor(part, flat.div_(self.world.world_size))
        return part

    def start_adam(self) -> None:
        super().start_adam()
        self.engine.optimizer._lazy_init_hp_params_optimizer_state()  # else only after the first update

    def spread(self, named: Mapping[str, Tensor] | None, moment: str | None = None) -> None:
        super().spread(named, moment)
        if moment is None:
            self.engine.optimizer.update_lp_params()  # each rank rounds its own part; an all-gather distributes them

    def orthogonal(self, master: Tensor, direction_S: Tensor, matrices: Sequence[int]) -> Tensor:
        whole, size = self.all_parts(direction_S), math.prod(matrices)
        first, last = self.world.rank * len(direction_S), (self.world.rank + 1) * len(direction_S)
        index = next(index for index, own in enumerate(self.masters) if own is master)
        for offset in self.engine.optimizer.round_robin_bit16_offsets[index]:
            if first - size < offset < last:  # the other matrices are other ranks' work
                matrix = whole[offset : offset + size].view(*matrices)
                matrix.copy_(orthogonalized(matrix))
        return whole[first:last].to(direction_S.device)

    def divide(self, parameter: Any, full: Tensor, moment: str | None) -> None:
        if moment:
            sharded.safe_set_full_optimizer_state(parameter, full, moment)
        else:
            sharded.safe_set_full_fp32_param(parameter, full)


class Zero3(DeepSpeed):
    """Each rank holds a part of every parameter, of its gradient and of Adam's state."""

    def __init__(self, model: nn.Module, groups: Groups, config: EngineConfig, world: World) -> None:
        super().__init__(model, groups, config, world)
        self.masters = self.engine.optimizer.fp32_partitioned_groups_flat

    def orthogonal(self, master: Tensor, direction_S: Tensor, matrices: Sequence[int]) -> Tensor:
        ranks, size = self.world.world_size, math.prod(matrices)
        share = math.ceil(size / ranks)  # of each parameter, padded to equal shares
        whole = self.all_parts(direction_S).view(ranks, -1, share).transpose(0, 1).contiguous()
        stacked = whole.flatten(1)[:, :size]
        stacked.copy_(orthogonalized(stacked.reshape(-1, *matrices[1:])).reshape(stacked.shape))
        return whole[:, self.world.rank].flatten().to(direction_S.device)

    def divide(self, parameter: Any, full: Tensor, moment: str | None) -> None:
        size = parameter.ds_tensor.numel()
        # DeepSpeed's setters do not pad
        padded = nn.functional.pad(full.flatten(), (0, size * self.world.world_size - full.numel()))
        part = padded.narrow(0, size * self.world.rank, size)
        if moment:
            sharded.safe_set_local_optimizer_state(parameter, part, moment)
            return
        sharded.safe_set_local_fp32_param(parameter, part)
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.copy_(full)
