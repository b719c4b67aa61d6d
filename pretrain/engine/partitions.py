"""The flat groups of ZeRO stages 1 and 2: locates each parameter in them, and moves values to and from the first rank.

DeepSpeed concatenates the parameters of an optimizer group in one flat tensor of the training precision, padded so that
it divides evenly among the ranks. Only the owner of a part holds its fp32 master weights and Adam moments. Here each
part is sent to or from the first rank once; DeepSpeed's own utilities send every full tensor to every rank.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.job.processes import World

AT_ONCE = 2**24
"""Values per collective, over all ranks: 64 MB of fp32 on the first rank's device."""


class Place(NamedTuple):
    """The range of a flat group that holds a parameter."""

    name: str
    first: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + math.prod(self.shape)


def places_in(flat: Tensor, parameters: Mapping[str, Tensor]) -> list[Place]:
    """Returns the places of the parameters that are views into `flat`, in the order of their memory."""
    places = [
        Place(name, int(parameter.storage_offset() - flat.storage_offset()), tuple(parameter.shape))
        for name, parameter in parameters.items()
        if parameter.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() and parameter.is_contiguous()
    ]
    return sorted((place for place in places if place.first >= 0 and place.end <= flat.numel()), key=lambda p: p.first)


def parameters_in(flat: Tensor, places: Iterable[Place]) -> dict[str, Tensor]:
    """Returns the parameters of a flat group by name, as views."""
    return {place.name: flat[place.first : place.end].view(place.shape) for place in places}


class Partitions:
    """The flat groups of a job: `flats` in the training precision, and the fp32 `masters` of this rank's parts.

    Raises:
        RuntimeError: DeepSpeed's memory layout is not the one this module relies on.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], flats: Sequence[Tensor], masters: Sequence[Tensor], world: World
    ) -> None:
        self._world = world
        self._names = list(parameters)
        self._places = [places_in(flat, parameters) for flat in flats]
        if problem := self._problem(flats, masters):
            raise RuntimeError(f"ZeRO's flat groups: {problem}; use the version of DeepSpeed in constraints.txt")

    def _problem(self, flats: Sequence[Tensor], masters: Sequence[Tensor]) -> str | None:
        """Returns how the layout differs from the expected one, or `None`.

        Must run before training, while `masters` are still fp32 copies of the flat groups.
        """
        placed = [place.name for places in self._places for place in places]
        if wrong := sorted(name for name in self._names if placed.count(name) != 1):
            return f"{len(wrong)} parameters do not lie in exactly one, first {wrong[0]}"
        for number, (flat, master) in enumerate(zip(flats, masters, strict=True)):
            own = flat.view(self._world.world_size, -1)[self._world.rank].to(master.device, torch.float32)
            if not torch.equal(master.view(torch.int32), own.view(torch.int32)):  # compared as bits: NaN != NaN
                return f"rank {self._world.rank} holds no fp32 copy of its part of group {number}"
        return None

    @torch.no_grad()
    def gather(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """Gathers all ranks' `parts` (one per group): full fp32 tensors by name on rank 0's CPU. Collective."""
        size, device = self._world.world_size, self._world.device
        named: dict[str, Tensor] = {}
        for part, places in zip(parts, self._places, strict=True):
            group = torch.empty(size if self._world.is_first else 0, part.numel())
            for piece in pieces(part, size):
                own = part[piece].to(device)
                rows = torch.empty(len(group), own.numel(), device=device)
                dist.gather(own, list(rows) or None)
                group[:, piece] = rows
            if self._world.is_first:
                named |= parameters_in(group.view(-1), places)
        return {name: named[name] for name in self._names if name in named}

    @torch.no_grad()
    def scatter(self, parts: Sequence[Tensor], named: Mapping[str, Tensor] | None) -> None:
        """The inverse of `gather`: fills every rank's `parts` with the first rank's tensors. Collective."""
        size, device = self._world.world_size, self._world.device
        for part, places in zip(parts, self._places, strict=True):
            group = torch.zeros(size if named else 0, part.numel())
            if named:
                for name, parameter in parameters_in(group.view(-1), places).items():
                    parameter.copy_(named[name])
            for piece in pieces(part, size):
                own = torch.empty_like(part[piece], device=device)
                dist.scatter(own, list(group[:, piece].to(device)) or None)
                part[piece] = own


def pieces(part: Tensor, ranks: int) -> Iterator[slice]:
    """Yields slices of a part, each of at most `AT_ONCE` values over all ranks together (or one value per rank)."""
    length = max(1, AT_ONCE // ranks)
    return (slice(first, first + length) for first in range(0, part.numel(), length))
