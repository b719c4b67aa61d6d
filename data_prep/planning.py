"""Plans the shards: which documents each one holds, from names, sizes and the beginnings of files alone.

A shard holds several whole files, or the documents that begin in a range of one large file. Neither the number of
workers nor the state of an earlier build changes the plan. A worker receives names and ranges, never text.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from data_prep.formats import group_sizes, is_table
from data_prep.sources import SUFFIXES, Source
from data_prep.unpacking import can_seek, text_per_byte

_FEWEST = 8  # shards of a build, unless they would be smaller than this
_SMALLEST, _MIDDLE, _LARGEST = 6e6, 64e6, 1e9  # bytes of text in a shard; up to the middle size there are `_FEWEST`
_MANY = 128  # shards of a build, unless they would be smaller than the middle size or larger than the largest
_PACKED = 3  # bytes of text per byte of a small compressed file or table, which is not opened for the plan


class Range(NamedTuple):
    """The documents that begin in one part of a source; `start` and `end` are bytes of text, or row groups."""

    source: Source
    start: int = 0
    end: int | None = None
    """End of the range; None for the end of the source."""

    @property
    def key(self) -> str:
        """Identifies the range, even if the input is moved to another folder."""
        return f"{self.source.key}@{self.start}"


class Shard(NamedTuple):
    """The text that one shard is made from. The build's seed and the shard's key determine its random streams."""

    number: int
    ranges: tuple[Range, ...]
    size: int
    """Approximate bytes on disk."""

    @property
    def name(self) -> str:
        """Prefix of the names of the shard's files."""
        return f"shard-{self.number:05d}"


Task = tuple[Shard, ...]
"""Shards that one worker writes in order: several only if they come from one file that allows no seeking."""


def plan_shards(sources: Sequence[Source], text_per_shard: float) -> list[Task]:
    """Returns all shards, each of about `text_per_shard` bytes of text; 0 chooses a size that suits the input.

    Raises:
        ConfigError: a file is unreadable, or not in the format that it appears to have.
    """
    total = sum(map(_text_size, sources))
    few = min(max(total / _FEWEST, _SMALLEST), _MIDDLE)
    budget = text_per_shard or min(max(few, total / _MANY), _LARGEST)
    tasks: list[Task] = []
    held: list[Range] = []
    number = size = 0
    for source in filter(lambda source: source.size, sources):
        ranges, is_sought = [Range(source)], True
        if _text_size(source) > budget:
            ranges, is_sought = _cut(source, budget)
        is_large = len(ranges) > 1
        if held and (is_large or size + _text_size(source) > budget):
            tasks.append((Shard(number, tuple(held), sum(part.source.size for part in held)),))
            number, size, held = number + 1, 0, []
        if is_large:
            shards = [Shard(number + n, (part,), source.size // len(ranges)) for n, part in enumerate(ranges)]
            tasks += [(shard,) for shard in shards] if is_sought else [tuple(shards)]
            number += len(shards)
        else:
            held += ranges
            size += _text_size(source)
    if held:
        tasks.append((Shard(number, tuple(held), sum(part.source.size for part in held)),))
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
    if is_table(source.path):
        groups = group_sizes(source.path)
        return [Range(source, *bounds) for bounds in pairwise(_groups_at_once(groups, budget))], True
    text, is_packed = measured_size(source)
    count = max(1, ceil(text / budget))
    starts = [text * number // count for number in range(count)]
    ends: list[int | None] = [*starts[1:], None]
    ranges = [Range(source, start, end) for start, end in zip(starts, ends, strict=True)]
    return ranges, not is_packed or can_seek(source)


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
