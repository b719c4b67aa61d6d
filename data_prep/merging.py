"""Parts of chunks become shards: which go together follows from their sizes, in the order of the input."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.manifest import BuildConfig, ShardEntry
from data_prep.masking import bytes_per_copy
from data_prep.parts import read_part
from data_prep.pipeline import part_path
from data_prep.records import PartEntry, folder_of
from data_prep.shards import IndexedWriter


class Merge(NamedTuple):
    """A shard to write: a run of chunks, and the parts of those that have one on this side."""

    side: str
    number: int
    first_chunk: int
    last_chunk: int
    parts: tuple[tuple[int, PartEntry], ...]
    """Each with its chunk's number."""

    @property
    def name(self) -> str:
        """Prefix of the shard's files."""
        return f"shard-{self.number:05d}"


class ShardCutter:
    """Takes one side's parts in the order of their chunks, and says when a shard of them is full.

    Args:
        limit: bytes of parts in a shard, except where one part alone has more.
    """

    def __init__(self, side: str, limit: float) -> None:
        self._side, self._limit = side, limit
        self._number = self._size = 0
        self._parts: list[tuple[int, PartEntry]] = []

    def add(self, chunk: int, part: PartEntry | None) -> Iterator[Merge]:
        """Takes the next chunk's part; yields the shard that is full without it, if any."""
        if part is None:
            return
        if self._parts and self._size + part.size > self._limit:
            yield from self.end()
        self._parts.append((chunk, part))
        self._size += part.size

    def end(self) -> Iterator[Merge]:
        """Yields the shard of the parts that are left, if any."""
        if self._parts:
            first, last = self._parts[0][0], self._parts[-1][0]
            yield Merge(self._side, self._number, first, last, tuple(self._parts))
            self._number, self._size, self._parts = self._number + 1, 0, []


def merge_parts(merge: Merge, config: BuildConfig, output: Path) -> ShardEntry:
    """Writes a shard; its parts stay.

    Raises:
        OSError: a part is missing or damaged, or the disk is full.
    """
    folder = folder_of(output, merge.side)
    ids = IndexedWriter(folder / merge.name, np.uint16)
    masks = IndexedWriter(folder / f"{merge.name}.mask", np.uint8)
    row = config.mask_copies * bytes_per_copy(config.seq_length)
    for chunk, part in merge.parts:
        for block in read_part(part_path(output, merge.side, chunk), part, row):
            ids.add(block.ids, block.lengths)
            masks.add(block.masks, np.full(len(block.lengths), row))
    files = ids.close() | masks.close()
    parts = [part for _, part in merge.parts]
    return ShardEntry(
        name=merge.name,
        first_chunk=merge.first_chunk,
        last_chunk=merge.last_chunk,
        sequences=sum(part.sequences for part in parts),
        tokens=sum(part.tokens for part in parts),
        word_pieces=sum(part.word_pieces for part in parts),
        unknown=sum(part.unknown for part in parts),
        ngrams=tuple(map(sum, zip(*(part.ngrams for part in parts), strict=True))),
        written={
            name.removeprefix(merge.name): ((folder / name).stat().st_size, digest) for name, digest in files.items()
        },
    )
