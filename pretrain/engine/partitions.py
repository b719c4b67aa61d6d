"""The flat groups of ZeRO stages 1 and 2: where each parameter lies in them, and how its values reach the first rank.

DeepSpeed lays the parameters of an optimizer group end to end in one flat tensor of the training precision, padded so
that the ranks can divide it evenly. Each rank alone holds the fp32 master weights and Adam's moments of its own part.
Each part is sent to the first rank, or from it, once; DeepSpeed's own utilities send every tensor whole to every rank.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.job.processes import World

AT_ONCE = 2**24
"""Values that one collective moves, over all ranks: 64 MB of fp32 on the first rank's device."""


class Place(NamedTuple):
    """The stretch of a flat group that holds a parameter."""

    name: str
    first: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + math.prod(self.shape)


def places_in(flat: Tensor, parameters: Mapping[str, Tensor]) -> list[Place]:
    """The places of those parameters that are stretches of `flat` in memory, in their order there."""
    places = [
        Place(name, int(parameter.storage_offset() - flat.storage_offset()), tuple(parameter.shape))
        for name, parameter in parameters.items()
        if parameter.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() and parameter.is_contiguous()
    ]
    return sorted((place for place in places if place.first >= 0 and place.end <= flat.numel()), key=lambda p: p.first)


def cut(flat: Tensor, places: Iterable[Place]) -> dict[str, Tensor]:
    """The parameters of a flat group by name, copied out of it."""
    return {place.name: flat[place.first : place.end].view(place.shape).clone() for place in places}


def join(named: Mapping[str, Tensor], places: Iterable[Place], size: int) -> Tensor:
    """The inverse of `cut`, in fp32 on the CPU; padding is 0."""
    flat = torch.zeros(size)
    for place in places:
        flat[place.first : place.end].view(place.shape).copy_(named[place.name])
    return flat


class Partitions:
    """The flat groups of a job: `flats` in the training precision, and the fp32 `masters` of this rank's parts.

    Raises:
        RuntimeError: DeepSpeed has laid the parameters out otherwise than this module relies on.
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
        """What keeps this layout from being understood; the masters are still DeepSpeed's copies of the flat groups."""
        placed = [place.name for places in self._places for place in places]
        if wrong := sorted(name for name in self._names if placed.count(name) != 1):
            return f"{len(wrong)} parameters do not lie in exactly one, first {wrong[0]}"
        if len(flats) != len(masters):
            return f"{len(flats)} groups, but parts of {len(masters)}"
        for number, (flat, master, places) in enumerate(zip(flats, masters, self._places, strict=True)):
            if any(place.end > following.first for place, following in pairwise(places)):
                return f"parameters overlap in group {number}"
            if flat.numel() != master.numel() * self._world.world_size:
                return f"group {number} has {flat.numel()} values, a rank's part {master.numel()}"
            own = flat.narrow(0, master.numel() * self._world.rank, master.numel())
            if master.dtype != torch.float32 or not _same_bits(master, own.to(master.device, torch.float32)):
                return f"rank {self._world.rank} holds no fp32 copy of its part of group {number}"
        return None

    @torch.no_grad()
    def gather(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """Full fp32 tensors by name, on the first rank's CPU, of every rank's `parts`, one per group. Collective."""
        named: dict[str, Tensor] = {}
        for part, places in zip(parts, self._places, strict=True):
            named |= self._gather_group(part, places)
        return {name: named[name] for name in self._names if name in named}

    @torch.no_grad()
    def scatter(self, parts: Sequence[Tensor], named: Mapping[str, Tensor] | None) -> None:
        """The inverse of `gather`: fills every rank's `parts` with the first rank's tensors. Collective."""
        for part, places in zip(parts, self._places, strict=True):
            self._scatter_group(part, places, named)

    def _gather_group(self, part: Tensor, places: Sequence[Place]) -> dict[str, Tensor]:
        """One group; the flat tensor is gone when this returns."""
        size, device = self._world.world_size, self._world.device
        if not self._world.is_first:
            for piece in self._pieces(part):
                dist.gather(part[piece].to(device))
            return {}
        whole = torch.empty(size, part.numel())
        for piece in self._pieces(part):
            own = part[piece].to(device)
            rows = torch.empty(size, own.numel(), device=device)
            dist.gather(own, list(rows))
            whole[:, piece] = rows
        return cut(whole.view(-1), places)

    def _scatter_group(self, part: Tensor, places: Sequence[Place], named: Mapping[str, Tensor] | None) -> None:
        size, device = self._world.world_size, self._world.device
        whole = None if named is None else join(named, places, size * part.numel()).view(size, -1)
        for piece in self._pieces(part):
            own = torch.empty_like(part[piece], device=device)
            dist.scatter(own, None if whole is None else list(whole[:, piece].to(device)))
            part[piece] = own

    def _pieces(self, part: Tensor) -> Iterator[slice]:
        """Stretches of a part, such that all ranks' together have at most `AT_ONCE` values (or one each)."""
        length = max(1, AT_ONCE // self._world.world_size)
        return (slice(first, first + length) for first in range(0, part.numel(), length))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
