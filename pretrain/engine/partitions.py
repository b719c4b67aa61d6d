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


def cut(stretch: Tensor, first: int, places: Iterable[Place], named: Mapping[str, Tensor]) -> None:
    """Copies the values of a flat group from `first` on into the parameters that have them."""
    for place, inside, own in _shared(places, first, stretch.numel()):
        named[place.name].view(-1)[inside] = stretch[own]


def join(named: Mapping[str, Tensor], places: Iterable[Place], first: int, stretch: Tensor) -> None:
    """The inverse of `cut`: fills the stretch; padding is left as it is."""
    for place, inside, own in _shared(places, first, stretch.numel()):
        stretch[own] = named[place.name].reshape(-1)[inside]


def _shared(places: Iterable[Place], first: int, size: int) -> Iterator[tuple[Place, slice, slice]]:
    """The parameters that lie in `size` values from `first` on: which of their values, and where they are in these."""
    for place in places:
        start, end = max(first, place.first), min(first + size, place.end)
        if start < end:
            yield place, slice(start - place.first, end - place.first), slice(start - first, end - first)


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
        """One group, without ever holding it as a whole beside its parameters."""
        size, device = self._world.world_size, self._world.device
        named = {place.name: torch.empty(place.shape) for place in places} if self._world.is_first else {}
        for piece in pieces(part, size):
            own = part[piece].to(device)
            if not self._world.is_first:
                dist.gather(own)
                continue
            rows = torch.empty(size, own.numel(), device=device)
            dist.gather(own, list(rows))
            for rank, row in enumerate(rows.cpu()):
                cut(row, rank * part.numel() + piece.start, places, named)
        return named

    def _scatter_group(self, part: Tensor, places: Sequence[Place], named: Mapping[str, Tensor] | None) -> None:
        size, device = self._world.world_size, self._world.device
        for piece in pieces(part, size):
            own = torch.empty_like(part[piece], device=device)
            if named is None:
                dist.scatter(own)
            else:
                rows = torch.zeros(size, own.numel())
                for rank, row in enumerate(rows):
                    join(named, places, rank * part.numel() + piece.start, row)
                dist.scatter(own, list(rows.to(device)))
            part[piece] = own


def pieces(part: Tensor, ranks: int) -> Iterator[slice]:
    """Stretches of a part, such that those of all ranks together have at most `AT_ONCE` values (or one each)."""
    length = max(1, AT_ONCE // ranks)
    return (slice(first, first + length) for first in range(0, part.numel(), length))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
