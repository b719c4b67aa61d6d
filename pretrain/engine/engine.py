"""The interface to DeepSpeed: precision, ZeRO, updates, and the state of the whole job.

A training step is `forward` and `backward` for each micro-batch, then one `update`. `full_state` gathers full tensors
by name for a checkpoint, independent of ZeRO stage and world size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from foundation.config import ConfigError
from pretrain.engine.checkpoint import EngineState
from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.engine.gradients import squared_norm
from pretrain.engine.hardware import DTYPES, use_operations
from pretrain.engine.optim import UNSCALED, AdamScale
from pretrain.engine.partitions import Partitions
from pretrain.engine.plain import PlainEngine, is_enough
from pretrain.job.processes import World
from pretrain.model.encoder import LayerStack

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's two moments, under the names that PyTorch and DeepSpeed give them."""

LOSS_SCALE_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""Attributes of DeepSpeed's dynamic loss scaler that change during training."""


@dataclass(frozen=True)
class StepResult:
    """The outcome of `Engine.update`."""

    overflow: bool
    """Loss or gradient was not finite, so no weight changed; in any precision."""
    gradient_norm: Tensor | float
    """Global norm before clipping; infinite at an overflow.

    A number at stage 0, a CPU tensor at stages 1 and 2, and at stage 3 a tensor on the device DeepSpeed chose.
    """
    loss_scale: float
    """The loss scale used in this step; 1 except with fp16."""
    fatal: bool = False
    """The step overflowed and the loss scale cannot fall: there is none, it is fixed, or it is at its minimum."""


class Engine:
    """A model under DeepSpeed, or under plain PyTorch if the job does not need DeepSpeed (`plain.is_enough`).

    `parameter_groups` come from `optim.parameter_groups`, `config` from `deepspeed_config.resolve`.

    Raises:
        ConfigError: bf16 on a GPU without it, or the job needs DeepSpeed and it cannot be imported.
    """

    def __init__(
        self,
        model: nn.Module,
        parameter_groups: Sequence[Mapping[str, Any]],
        config: EngineConfig,
        world: World,
    ) -> None:
        cuda = world.device.type == "cuda"
        if cuda and config.precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            name = torch.cuda.get_device_name(world.device)
            raise ConfigError(f"bf16.enabled: {name} has no bf16; add --deepspeed_config ds_configs/zero1_fp16.json")
        use_operations(world)
        self.config, self.world = config, world
        for module in model.modules():
            if isinstance(module, LayerStack):
                module.recompute = config.recomputes
        initial = {name: p.detach() for name, p in model.named_parameters()} if world.is_first else None
        self._deepspeed: Any
        if is_enough(config, world):
            self._deepspeed = PlainEngine(model, parameter_groups, config, world)
        else:
            self._library = _import_deepspeed()
            self._deepspeed = self._library.start(model, parameter_groups, config, world)
        self._optimizer = self._deepspeed.optimizer
        self.dtype = DTYPES[config.precision]
        self._adam_numbers = [(group["eps"], group["weight_decay"]) for group in self._optimizer.param_groups]
        self._partitions = None  # only at stages 1 and 2
        if config.stage in (1, 2):
            groups = self._optimizer.bit16_groups_flat
            self._partitions = Partitions(dict(self._parameters()), groups, self._masters(), world)
        self._start_adam()
        self._load_weights(initial)  # in full precision: DeepSpeed made its master weights from rounded ones
        if scaler := self._dynamic_loss_scaler():
            scaler.raise_error_at_min_scale = False  # its exception names no step; see `StepResult.fatal`

    @property
    def device(self) -> torch.device:
        return self.world.device

    @property
    def module(self) -> nn.Module:
        """The model itself, on its device and in its precision; called directly for evaluation."""
        return self._deepspeed.module

    @property
    def adam_steps(self) -> int:
        """Adam's step count: the updates of this run and of one whose optimizer it keeps."""
        return int(next(iter(self._adam_state().values()))["step"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the module's output: a tensor, or a (named) tuple, list or dict that holds the loss."""
        return self._deepspeed(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a micro-batch's `loss`; DeepSpeed averages over ranks and micro-batches.

        If the loss is not finite, a factor of NaN makes sure that the gradient is not finite either, on any rank.
        """
        self._deepspeed.backward(loss * (1 + 0 * loss.detach()))
        if not self._deepspeed.is_gradient_accumulation_boundary():
            self._deepspeed.step()  # counts the micro-batch; `update` ends the last one

    def update(self, learning_rate: float, scale: AdamScale = UNSCALED) -> StepResult:
        """Ends a step after the backward of its last micro-batch: clips the gradient and updates the weights.

        `scale` multiplies the learning rate, epsilon and weight decay of this update.
        """
        loss_scale = float(getattr(self._optimizer, "loss_scale", 1.0))
        for group, (eps, weight_decay) in zip(self._optimizer.param_groups, self._adam_numbers, strict=True):
            group["lr"] = learning_rate * group.get("lr_scale", 1.0) * scale.learning_rate
            group["eps"], group["weight_decay"] = eps * scale.eps, weight_decay * scale.weight_decay
        norm = self._clip_replicated() if self.config.stage == 0 else None
        floor = self._scale_is_at_floor()
        self._deepspeed.step()
        overflow = not (self._deepspeed.was_step_applied() if norm is None else norm < float("inf"))
        if overflow:
            return StepResult(True, float("inf"), loss_scale, floor)
        return StepResult(False, self._deepspeed.get_global_grad_norm() if norm is None else norm, loss_scale)

    def _clip_replicated(self) -> float:
        """Clips the gradients at stage 0; returns their norm before.

        DeepSpeed hides the norm there, and updates even with non-finite gradients.
        """
        parameters = [parameter for _, parameter in self._parameters()]
        norm = squared_norm([p.grad for p in parameters if p.grad is not None]).sqrt().float()
        nn.utils.clip_grads_with_norm_(parameters, self.config.gradient_clipping or float("inf"), norm)
        if not norm < float("inf"):
            self._deepspeed.zero_grad()  # Adam skips parameters without a gradient
        return float(norm)

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Sums `tensor` over the ranks in place, and returns it. Collective."""
        dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        """Waits for every rank."""
        dist.barrier()

    @torch.no_grad()
    def full_state(self) -> EngineState:
        """Returns the state of the whole job; its tensors are complete on the first rank and absent on the others.

        Collective. At stage 3 the other ranks hold one full tensor at a time.
        """
        (adam_steps,) = {int(state["step"]) for state in self._adam_state().values()}
        scaler = self._dynamic_loss_scaler()
        return EngineState(
            adam_steps=adam_steps,
            loss_scale={key: getattr(scaler, key) for key in LOSS_SCALE_FIELDS} if scaler else {},
            weights=self._gather(),
            moments={key: self._gather(key) for key in MOMENTS},
        )

    @torch.no_grad()
    def load_full_state(self, state: EngineState | None) -> None:
        """Loads the first rank's `state` into all ranks, bitwise; the other ranks pass `None`. Collective.

        Raises:
            ConfigError: the state's parameters do not match the model's.
        """
        shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in self.module.named_parameters()}
        problem = self.world.share(state.mismatch(shapes) if state else None)
        if problem:
            raise ConfigError(problem)
        adam_steps, loss_scale = self.world.share([state.adam_steps, state.loss_scale] if state else None)
        for adam in self._adam_state().values():
            adam["step"].fill_(adam_steps)
        self._load_weights(state.weights if state else None)
        for key in MOMENTS:
            self._spread(state.moments[key] if state else None, key)
        if scaler := self._dynamic_loss_scaler():
            for key, value in loss_scale.items():
                setattr(scaler, key, value)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters()

    def _adam_state(self) -> dict[Tensor, dict[str, Tensor]]:
        return self._deepspeed.basic_optimizer.state

    def _masters(self) -> list[Tensor]:
        """Returns the tensors that Adam updates here: the parameters at stage 0, else this rank's flat fp32 parts."""
        if self.config.stage == 0:
            return [parameter for _, parameter in self._parameters()]
        if self.config.stage == 3:
            return self._optimizer.fp32_partitioned_groups_flat
        return self._optimizer.single_partition_of_fp32_groups

    def _parts(self, moment: str | None) -> list[Tensor]:
        """Returns the master weights on this rank, or one of their moments."""
        return [self._adam_state()[master][moment] if moment else master for master in self._masters()]

    def _start_adam(self) -> None:
        """Creates Adam's state now rather than at the first update: a checkpoint may be saved or loaded before that."""
        fused = self._deepspeed.basic_optimizer.defaults["fused"]
        for master in self._masters():
            state = self._adam_state()[master]
            state["step"] = torch.zeros((), device=master.device if fused else "cpu")
            state |= {key: torch.zeros_like(master) for key in MOMENTS}

    def _scale_is_at_floor(self) -> bool:
        """Returns true if an overflow in this step could not lower the loss scale, now or later."""
        scaler = self._dynamic_loss_scaler()
        return scaler is None or (
            scaler.cur_scale <= scaler.min_scale and 1 in (scaler.delayed_shift, scaler.cur_hysteresis)
        )

    def _dynamic_loss_scaler(self) -> Any:
        """Returns DeepSpeed's dynamic loss scaler, or `None` unless fp16 runs without a fixed scale."""
        scaler = getattr(self._optimizer, "loss_scaler", None)
        return scaler if getattr(scaler, "dynamic", False) else None

    def _gather(self, moment: str | None = None) -> dict[str, Tensor]:
        """Gathers master weights or a moment: full tensors by name on the first rank, an empty dict on the others."""
        if self._partitions:
            return self._partitions.gather(self._parts(moment))
        gathered = {}
        for name, parameter in self._parameters():
            tensor = self._full(parameter, moment)
            if self.world.is_first:
                gathered[name] = tensor.to("cpu", torch.float32, copy=True)
        return gathered

    def _full(self, parameter: nn.Parameter, moment: str | None) -> Tensor:
        if self.config.stage == 0:
            return self._adam_state()[parameter][moment] if moment else parameter
        return self._library.whole(parameter, moment)

    @torch.no_grad()
    def _load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        """Sets the master weights, and the module's rounded ones, from the first rank's full tensors by name."""
        self._spread(weights)
        if self._partitions:
            self._optimizer.update_lp_params()  # each rank rounds its own part; an all-gather distributes them

    def _spread(self, named: Mapping[str, Tensor] | None, moment: str | None = None) -> None:
        """Copies the first rank's full tensors, by name, into the master weights or a moment on every rank."""
        if self._partitions:
            self._partitions.scatter(self._parts(moment), named)
            return
        for name, parameter in self._parameters():
            shape = getattr(parameter, "ds_shape", parameter.shape)
            full = torch.empty(shape, device=self.device) if named is None else named[name].to(self.device, copy=True)
            dist.broadcast(full, src=0)
            if self.config.stage == 0:
                self._full(parameter, moment).copy_(full)
            else:
                self._library.divide(parameter, moment, full, self.world)


def _import_deepspeed() -> ModuleType:
    try:
        from pretrain.engine import deepspeed_engine
    except ImportError as error:
        raise ConfigError(
            f"deepspeed_config: needs DeepSpeed, which cannot be imported ({error}); install it, or train in one"
            " process with --deepspeed_config ds_configs/zero0_fp32.json, which does not need it"
        ) from None
    return deepspeed_engine
