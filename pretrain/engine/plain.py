"""The interface of an engine's back end, and the plain one: PyTorch alone, at stage 0. ZeRO: `zero.py`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.engine.muon import MuonAndAdamW
from pretrain.job.processes import World

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's two moments, under the names that PyTorch and DeepSpeed give them."""
ALIGNED = 4
"""Values of fp32 in 16 bytes, from which a GPU's fast kernels want each gradient to start."""
CHUNK = 2**20
"""Values converted to float64 at once on a CPU: 8 MB, which fit its cache."""


class Backend(ABC):
    """A model in training: its gradients and updates, and its state as full tensors by name."""

    module: nn.Module
    """The model, on its device and in its precision."""
    adam: MuonAndAdamW
    """The optimizer: its groups hold the numbers of the next update, its state the moments of `masters`."""
    masters: Sequence[Tensor]
    """The tensors that Adam updates on this rank: fp32 parameters, or flat parts of them."""
    layout: Sequence[tuple[Sequence[Tensor], Sequence[int], int]] = ()
    """For each flat gradient its parameters, their first places, from 16 bytes to 16 bytes, and its size; none where
    gradients are divided otherwise."""
    replayed: tuple[list[Tensor], dict[Tensor, Tensor]] | None = None
    """If set, the gradients are what CUDA graphs write into these `flat_gradients`."""

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the module's output."""

    @abstractmethod
    def backward(self, loss: Tensor, doubt: Tensor) -> None:
        """Adds the gradient of a micro-batch's loss, averaged over micro-batches and ranks; not finite if `doubt`, else
        0, is not. Collective.
        """

    @abstractmethod
    def update(self) -> Tensor | float:
        """Clips the gradient and updates the masters; returns the norm before clipping. Collective.

        The norm is not finite if the gradient was not, so nothing changed.
        """

    def flat_gradients(self) -> tuple[list[Tensor], dict[Tensor, Tensor]]:
        """Returns new gradients of 0: the flat tensors of `layout`, and in them each parameter's as a view."""
        flats = [torch.zeros(size, dtype=own[0].dtype, device=own[0].device) for own, _, size in self.layout]
        return flats, {
            parameter: flat.narrow(0, place, parameter.numel()).view_as(parameter)
            for flat, (own, places, _) in zip(flats, self.layout, strict=True)
            for parameter, place in zip(own, places, strict=True)
        }

    def flattened(self) -> tuple[list[Tensor], dict[Tensor, Tensor]]:
        """Returns the gradients of this step as `flat_gradients`; 0 for a parameter that has none."""
        if self.replayed:
            return self.replayed
        flats, views = self.flat_gradients()
        found = [(view, parameter.grad) for parameter, view in views.items() if parameter.grad is not None]
        torch._foreach_copy_([view for view, _ in found], [gradient for _, gradient in found])
        return flats, views

    def start_adam(self) -> None:
        """Creates Adam's state now rather than at the first update: a checkpoint may be saved or loaded before that."""
        for master in self.masters:
            step = torch.zeros((), device=master.device)
            self.adam.state[master] |= {"step": step, **{key: torch.zeros_like(master) for key in MOMENTS}}

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
        """Factor by which the next loss is multiplied; 1 except in fp16."""
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


class Plain(Backend):
    """PyTorch alone, at stage 0: every rank holds the whole model and Adam's whole state, in fp32."""

    def __init__(
        self, model: nn.Module, parameter_groups: Sequence[Mapping[str, Any]], config: EngineConfig, world: World
    ) -> None:
        self.world, self.config, self.module = world, config, model.to(world.device)
        self.adam = MuonAndAdamW([{**group} for group in parameter_groups], fused=True)
        self.masters = [*model.parameters()]
        *places, size = accumulate((-(-master.numel() // ALIGNED) * ALIGNED for master in self.masters), initial=0)
        self.layout = [(self.masters, places, size)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: Tensor, doubt: Tensor) -> None:
        loss.backward(doubt + 1 / self.config.accumulation_steps)

    def update(self) -> Tensor:
        if self.world.world_size > 1 or self.replayed:
            (flat,), views = self.flattened()  # one all-reduce; a rank without a gradient of a parameter has zeros
            self.world.sum_over_ranks(flat).mul_(1 / self.world.world_size)
            for master, view in views.items():
                master.grad = view
        norm = squared_norm([master.grad for master in self.masters if master.grad is not None]).sqrt().float()
        if norm < float("inf"):
            largest = self.config.json["gradient_clipping"] or float("inf")
            nn.utils.clip_grads_with_norm_(self.masters, largest, norm)
            self.adam.step()
        self.adam.zero_grad(set_to_none=not self.replayed)
        return norm

    def gather(self, moment: str | None = None) -> dict[str, Tensor]:
        if not self.world.is_first:
            return {}
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._tensors(moment).items()}

    def spread(self, named: Mapping[str, Tensor] | None, moment: str | None = None) -> None:
        for name, tensor in self._tensors(moment).items():
            if named is not None:
                tensor.copy_(named[name])
            dist.broadcast(tensor, src=0)

    def _tensors(self, moment: str | None) -> dict[str, Tensor]:
        return {
            name: self.adam.state[parameter][moment] if moment else parameter.detach()
            for name, parameter in self.module.named_parameters()
        }


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
