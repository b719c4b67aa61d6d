"""A model in training: precision, updates, and the state of the whole job, the same for every back end.

A training step is `forward` and `backward` for each micro-batch, then one `update`. `full_state` gathers full tensors
by name for a checkpoint, independent of ZeRO stage and world size. How gradients and states are divided among the
ranks is the back end's affair (`plain.py`, `zero.py`). `resume`, `accumulate` and `end_step` serve the loops of
pre-training and fine-tuning.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from electra_sampler.foundation.config import ConfigError, explained
from pretrain.engine.checkpoint import EngineState, load, newest_valid, require_fit
from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.engine.hardware import DTYPES, use_operations
from pretrain.engine.optim import UNSCALED, AdamScale
from pretrain.engine.plain import MOMENTS, Backend, Plain
from pretrain.job.processes import World
from pretrain.model.encoder import Stack

Progress = TypeVar("Progress")


@dataclass(frozen=True)
class StepResult:
    """The outcome of `Engine.update`."""

    overflow: bool
    """Loss or gradient was not finite, so no weight changed; in any precision."""
    gradient_norm: float
    """Global norm before clipping; infinite at an overflow."""
    loss_scale: float
    """The loss scale used in this step; 1 except with fp16."""
    fatal: bool = False
    """The step overflowed and the loss scale cannot fall: there is none, it is fixed, or it is at its minimum."""


class Unread(NamedTuple):
    """The outcome of a step on its way to the host."""

    values: Tensor
    """Gradient norm and sums over the ranks, in the host's memory once `copied` has happened."""
    copied: torch.cuda.Event | None
    loss_scale: float
    final: bool
    """An overflow could not lower the loss scale."""

    def read(self) -> tuple[StepResult, list[float]]:
        """Waits for the outcome of this step, though not for work that the device was given since; returns the sums,
        too.
        """
        if self.copied:
            self.copied.synchronize()
        norm, *sums = self.values.tolist()
        overflow = not math.isfinite(norm)
        return StepResult(overflow, math.inf if overflow else norm, self.loss_scale, overflow and self.final), sums


class Engine:
    """A model under DeepSpeed, or at stage 0 under plain PyTorch.

    `parameter_groups` come from `optim.parameter_groups`, `config` from `deepspeed_config.resolve`. `few_shapes` says
    that batches have few shapes, each worth compiling for.

    Raises:
        ConfigError: bf16 on a GPU without it, or the job needs DeepSpeed and it cannot be imported.
    """

    module: nn.Module
    """The model itself, on its device and in its precision; called directly for evaluation."""

    def __init__(
        self,
        model: nn.Module,
        parameter_groups: Sequence[Mapping[str, Any]],
        config: EngineConfig,
        world: World,
        few_shapes: bool = False,
    ) -> None:
        cuda = world.device.type == "cuda"
        if cuda and config.precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            name = torch.cuda.get_device_name(world.device)
            raise ConfigError(f"bf16.enabled: {name} has no bf16; add --deepspeed_config ds_configs/zero1_fp16.json")
        use_operations(world, partitioned=config.stage == 3, few_shapes=few_shapes)
        self.config, self.world, self.device, self.dtype = config, world, world.device, DTYPES[config.precision]
        for module in model.modules():
            if isinstance(module, Stack):
                module.recompute = config.recomputes
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        initial = {name: p.detach() for name, p in model.named_parameters()} if world.is_first else None
        self.module, self.backend = model, backend_for(model, parameter_groups, config, world)
        self._adam_numbers = [(group["eps"], group["weight_decay"]) for group in self.backend.adam.param_groups]
        self.backend.start_adam()
        with torch.no_grad():
            self.backend.spread(initial)  # in full precision: DeepSpeed made its master weights from rounded ones

    @property
    def adam_steps(self) -> int:
        """Adam's step count: this run's updates, plus those of the run whose optimizer it started with, if any."""
        return int(next(iter(self.backend.adam.state.values()))["step"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output of the model's forward, which holds the loss."""
        return self.backend.forward(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a micro-batch's `loss`, averaged over ranks and micro-batches.

        If the loss is not finite, `doubt` of NaN makes sure that the gradient is not finite either, on any rank.
        """
        self.backend.backward(loss, doubt=0 * loss.detach())

    def update(self, learning_rate: float, scale: AdamScale = UNSCALED) -> StepResult:
        """Ends a step after the backward of its last micro-batch, and waits for its result; see `start_update`."""
        return self.start_update(learning_rate, scale, torch.empty(0, device=self.device)).read()[0]

    def start_update(self, learning_rate: float, scale: AdamScale, sums: Tensor) -> Unread:
        """Ends a step after the backward of its last micro-batch: clips the gradient and updates the weights.

        `scale` multiplies the learning rate, epsilon and weight decay of this update. The values of `sums` are read
        together with the norm. In bf16 the host does not wait for the device (see `zero.Zero12`).
        """
        loss_scale, final = self.backend.loss_scale, self.backend.scale_is_final
        for group, (eps, weight_decay) in zip(self.backend.adam.param_groups, self._adam_numbers, strict=True):
            group["lr"] = learning_rate * group.get("lr_scale", 1.0) * scale.learning_rate
            group["eps"], group["weight_decay"] = eps * scale.eps, weight_decay * scale.weight_decay
        norm = torch.as_tensor(self.backend.update(), dtype=torch.float64, device=self.device)
        values = torch.cat([norm[None], sums]).to("cpu", non_blocking=True)
        copied = torch.cuda.Event() if self.device.type == "cuda" else None
        if copied:
            copied.record()
        return Unread(values, copied, loss_scale, final)

    @torch.no_grad()
    def full_state(self) -> EngineState:
        """Returns the state of the whole job; its tensors are complete on the first rank and absent on the others.

        Collective.
        """
        return EngineState(
            adam_steps=self.adam_steps,
            loss_scale=self.backend.scale_state(),
            weights=self.backend.gather(),
            moments={key: self.backend.gather(key) for key in MOMENTS},
        )

    @torch.no_grad()
    def load_full_state(self, state: EngineState | None) -> None:
        """Loads the first rank's `state` into all ranks, bitwise; the other ranks pass `None`. Collective.

        Raises:
            ConfigError: the state's parameters do not match the model's.
        """
        self.world.on_first(lambda: require_fit(state.weights, self._shapes) if state else None)
        adam_steps, loss_scale = self.world.share([state.adam_steps, state.loss_scale] if state else None)
        for adam in self.backend.adam.state.values():
            adam["step"].fill_(adam_steps)
        self.backend.spread(state.weights if state else None)
        for key in MOMENTS:
            self.backend.spread(state.moments[key] if state else None, key)
        self.backend.load_scale_state(loss_scale)


def backend_for(
    model: nn.Module, parameter_groups: Sequence[Mapping[str, Any]], config: EngineConfig, world: World
) -> Backend:
    """Chooses the back end of the ZeRO stage: plain PyTorch at stage 0, else DeepSpeed's.

    Raises:
        ConfigError: DeepSpeed cannot be imported.
    """
    if config.stage == 0:
        return Plain(model, parameter_groups, config, world)
    with explained(
        "deepspeed_config: needs DeepSpeed, which cannot be imported",
        "install it, or train with --deepspeed_config ds_configs/zero0_fp32.json, which does not need it",
        ImportError,
    ):
        from pretrain.engine.zero import Zero3, Zero12
    return (Zero3 if config.stage == 3 else Zero12)(model, parameter_groups, config, world)


def resume(folder: Path, engine: Engine, progress: type[Progress]) -> Progress:
    """Loads the newest intact checkpoint into the engine and returns the progress saved with it. Collective.

    Without a checkpoint, the engine stays as it is and the progress is new.

    Raises:
        ConfigError: on every rank, if no checkpoint is usable (see `checkpoint.all_valid`) or it is of another model.
    """
    loaded = engine.world.on_first(lambda: load(newest) if (newest := newest_valid(folder)) else None)
    state, extra = loaded or (None, None)
    extra = engine.world.share(extra)
    if extra is None:
        return progress()
    engine.load_full_state(state)
    return progress(**extra)


def accumulate(engine: Engine, losses: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Runs the backward of each of this rank's micro-batches; returns the sum of their values, on the device.

    Each item of `losses` is from the forward of one micro-batch: the loss to differentiate, and a value to sum up.
    """
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    for loss, counted in losses:
        engine.backward(loss)
        total += counted
    return total


def end_step(
    engine: Engine, total: Tensor, requests: Sequence[bool], learning_rate: float, scale: AdamScale = UNSCALED
) -> Unread:
    """Starts the update after `accumulate`; sums `total` and each of this rank's requests (to stop, to save) over the
    ranks. Collective.
    """
    own = torch.tensor([*requests], dtype=total.dtype, pin_memory=total.is_cuda)
    sums = engine.world.sum_over_ranks(torch.cat([total[None], own.to(total.device, non_blocking=True)]))
    return engine.start_update(learning_rate, scale, sums)
