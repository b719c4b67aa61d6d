"""Plans the shards: which documents each one holds, from names, sizes and the beginnings of files alone.

A shard holds several whole files, or the documents that begin in a range of one large file. Neither the number of
workers nor the state of an earlier build changes the plan. A worker receives names and ranges, never text.
"""

from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from math import ceil, inf
from typing import NamedTuple

from data_prep.formats import group_sizes, is_table
from data_prep.sources import SUFFIXES, Source
from data_prep.unpacking import can_seek, text_per_byte

_FEWEST = 8  # shards of a build, unless they would be smaller than this
_SMALLEST, _MIDDLE, _LARGEST = 6e6, 64e6, 1e9  # bytes of text in a shard; up to the middle size there are `_FEWEST`
_MANY = 128  # shards of a build, unless they would be smaller than the middle size or larger than the largest
_TOO_LARGE = 0.1  # share by which shards may be larger than planned, so that a file just over the size is not cut
_PACKED = 3  # bytes of text per byte of a small compressed file or table, which is not opened for the plan


class Range(NamedTuple):
    """The documents that begin in one part of a source; `start` and `end` are bytes of text, or row groups."""

    source: Source
    start: int = 0
    end: int | None = None
    """End of the range; None for the end of the source."""
    size: int = 0
    """Approximate bytes on disk."""

    @property
    def key(self) -> str:
        """Identifies the range, even if the input is moved to another folder."""
        return f"{self.source.key}@{self.start}"


class Shard(NamedTuple):
    """The text that one shard is made from. The build's seed and the shard's key determine its random streams."""

    number: int
    ranges: list[Range]

    @property
    def name(self) -> str:
        """Prefix of the names of the shard's files."""
        return f"shard-{self.number:05d}"

    @property
    def size(self) -> int:
        """Approximate bytes on disk."""
        return sum(part.size for part in self.ranges)


WorkerTask = list[Shard]
"""Shards that one worker writes in order: several only if they come from one file that allows no seeking."""


def plan_shards(sources: Sequence[Source], text_per_shard: float) -> list[WorkerTask]:
    """Returns all shards, each of about `text_per_shard` bytes of text; 0 chooses a size that suits the input.

    Raises:
        ConfigError: a file is unreadable, or not in the format that it appears to have.
    """
    total = sum(map(_text_size, sources))
    few = min(max(total / _FEWEST, _SMALLEST), _MIDDLE)
    budget = text_per_shard or min(max(few, total / _MANY), _LARGEST)
    tasks: list[WorkerTask] = []
    numbers = count()
    size = inf  # bytes of text in the last shard, to which a small file may be added
    for source in filter(lambda source: source.size, sources):
        text = _text_size(source)
        ranges, is_seekable = _cut(source, budget) if text > budget else ([Range(source, size=source.size)], True)
        if len(ranges) == 1 and size + text <= budget:
            tasks[-1][0].ranges.append(ranges[0])
            size += text
            continue
        shards = [Shard(next(numbers), [part]) for part in ranges]
        tasks += [[shard] for shard in shards] if is_seekable else [shards]
        size = text if len(ranges) == 1 else inf
    return tasks


def _text_size(source: Source) -> int:
    """Estimates a source's bytes of text from its size on disk and its suffix."""
    return source.size * (_PACKED if source.name.endswith((*SUFFIXES, ".parquet")) else 1)


def measured_size(source: Source) -> tuple[int, bool]:
    """Returns a file's bytes of text, estimated from its beginning if compressed; and whether it is compressed."""
    if is_table(source.path):
        return sum(group_sizes(source.path)), True
    share = text_per_byte(source.path)
    return round(source.size * (share or 1)), share is not None


def _cut(source: Source, budget: float) -> tuple[list[Range], bool]:
    """Returns the ranges of a large file, and whether each can be read without the ranges before it."""
    bounds: list[tuple[int, int | None]]
    if is_table(source.path):
        bounds, is_seekable = [*pairwise(_groups_at_once(group_sizes(source.path), budget))], True
    else:
        text, is_packed = measured_size(source)
        parts = max(1, ceil(text / budget - _TOO_LARGE))
        starts = [text * number // parts for number in range(parts)]
        bounds = [*zip(starts, [*starts[1:], None], strict=True)]
        is_seekable = not is_packed or can_seek(source)
    return [Range(source, start, end, source.size // len(bounds)) for start, end in bounds], is_seekable


def _groups_at_once(sizes: Sequence[int], budget: float) -> Iterator[int]:
    """Yields the bounds of the ranges: the first row group of each, then the number of row groups."""
    yield 0
    held = 0
    for group, size in enumerate(sizes):
        if held and held + size > budget:
            yield group
            held = 0
        held += size
    yield len(sizes)
