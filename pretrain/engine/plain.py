"""What an engine asks of its back end, and the plain one: PyTorch in one process at stage 0.

ZeRO's back ends are in `zero.py`. The plain one does DeepSpeed's arithmetic in the same order, so results and
checkpoints are bitwise equal.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.job.processes import World

SERVED_KEYS = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("optimizer", "zero_optimization", "activation_checkpointing", "timers"),
}
"""DeepSpeed's keys that plain PyTorch handles; any other, such as the profiler's, needs DeepSpeed."""
CHUNK = 2**20
"""Values converted to float64 at once on a CPU: 8 MB, which fit its cache."""


def is_enough(config: EngineConfig, world: World) -> bool:
    """Returns true if plain PyTorch can run the job: one process, stage 0, and only `SERVED_KEYS`."""
    return config.json.keys() <= SERVED_KEYS and config.stage == 0 and world.world_size == 1


class Backend(ABC):
    """A model in training: its gradients and updates, and its state as full tensors by name."""

    module: nn.Module
    """The model, on its device and in its precision."""
    adam: torch.optim.Optimizer
    """AdamW itself: its groups hold the numbers of the next update, its state the moments of `masters`."""
    masters: Sequence[Tensor]
    """What Adam updates on this rank: fp32 parameters, or flat parts of them."""

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the module's output."""

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a micro-batch's loss, averaged over micro-batches and ranks. Collective."""

    @abstractmethod
    def update(self) -> Tensor | float | None:
        """Clips the gradient and updates the masters; returns the norm before clipping. Collective.

        Returns `None` if the gradient was not finite, so nothing changed.
        """

    @abstractmethod
    def gather(self, moment: str | None = None) -> dict[str, Tensor]:
        """Returns the masters or one of their moments, full fp32 tensors by name on the first rank's CPU; nothing on
        the others. Collective.
        """

    @abstractmethod
    def spread(self, named: Mapping[str, Tensor] | None, moment: str | None = None) -> None:
        """The inverse of `gather`; masters reach the module, too, rounded to its precision. Collective."""

    @property
    def loss_scale(self) -> float:
        """What the next loss is multiplied by; 1 except in fp16."""
        return 1.0

    @property
    def scale_is_final(self) -> bool:
        """True if an overflow in this step could not lower the loss scale, now or later."""
        return True

    def scale_state(self) -> dict[str, float]:
        """Returns the state of a dynamic loss scale; nothing without one."""
        return {}

    def load_scale_state(self, state: Mapping[str, float]) -> None:  # noqa: B027  only fp16 has one
        """Loads what `scale_state` returned."""


class Replicated(Backend):
    """Every rank holds the whole model and Adam's whole state: stage 0."""

    def __init__(self, module: nn.Module, adam: torch.optim.Optimizer, config: EngineConfig, world: World) -> None:
        self.module, self.adam, self.world = module, adam, world
        self.masters = [*module.parameters()]
        self._most = config.gradient_clipping or float("inf")

    def clip(self) -> float:
        """Clips the gradients; returns their norm before."""
        norm = squared_norm([master.grad for master in self.masters if master.grad is not None]).sqrt().float()
        nn.utils.clip_grads_with_norm_(self.masters, self._most, norm)
        return float(norm)

    def gather(self, moment: str | None = None) -> dict[str, Tensor]:
        if not self.world.is_first:
            return {}
        return {
            name: self._tensor(parameter, moment).to("cpu", torch.float32, copy=True)
            for name, parameter in self.module.named_parameters()
        }

    def spread(self, named: Mapping[str, Tensor] | None, moment: str | None = None) -> None:
        for name, parameter in self.module.named_parameters():
            tensor = self._tensor(parameter, moment)
            if named is not None:
                tensor.copy_(named[name])
            dist.broadcast(tensor, src=0)

    def _tensor(self, parameter: nn.Parameter, moment: str | None) -> Tensor:
        return self.adam.state[parameter][moment] if moment else parameter.detach()


class Plain(Replicated):
    """PyTorch alone, for one process."""

    def __init__(
        self, model: nn.Module, parameter_groups: Sequence[Mapping[str, Any]], config: EngineConfig, world: World
    ) -> None:
        numbers = {key: value for key, value in config.json["optimizer"]["params"].items() if key != "torch_adam"}
        module = model.to(world.device)
        adam = torch.optim.AdamW([{**group} for group in parameter_groups], **numbers)
        super().__init__(module, adam, config, world)
        self._micro_batches = config.accumulation_steps

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        (loss / self._micro_batches).backward()

    def update(self) -> float | None:
        norm = self.clip()
        finite = norm < float("inf")
        if finite:
            self.adam.step()
        self.module.zero_grad(set_to_none=True)
        return norm if finite else None


@torch.no_grad()
def squared_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the sum of squares of all values, a float64 scalar on their device; not finite if any value is not.

    A GPU handles hundreds of tensors with a few kernels. Squares are summed in float64: in fp32, the norm of a large
    matrix is off by a thousandth on a CPU. The sum does not depend on how ranks and ZeRO stages divide the gradients.
    """
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    if gradients[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(list(gradients), dtype=torch.float64)).square().sum()
    wide = torch.empty(CHUNK, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for gradient in gradients:
        for part in gradient.flatten().split(CHUNK):
            part = wide[: part.numel()].copy_(part)
            total += torch.dot(part, part)
    return total
