"""Finds copies of documents anywhere in the corpus, on the workers; a first pass over the input keeps hashes.

1. `hash_chunk` writes the keys of a chunk's documents, 8 bytes each. Documents with a common key are copies.
2. `_sort_run` sorts the keys of a run of consecutive chunks.
3. `_match` compares a range of keys across all runs.
4. `_collect` writes the copies in a run of chunks. Rank 0 reads them when the build comes to that run.

Every key is written and read twice, and a worker holds `_AT_ONCE` keys. Two different documents with the same hash
would count as copies. Among 100 million documents, the chance of any such pair is 1 in 3,700 (n^2 / 2^65).
"""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.chunks import Chunk
from data_prep.formats import Reading
from data_prep.pairs import Pairs, matched
from data_prep.workers import Pool
from foundation.files import write_atomically

_AT_ONCE = 1 << 23  # keys; sorting takes about 90 bytes each
_DIGEST = 32  # bytes at the beginning of a file of keys: the digest of the chunk's text
_UNUSED = bytes(8)  # key of a document that is dropped anyway and never counts as a copy


def hash_chunk(chunk: Chunk, reading: Reading, folder: Path) -> int:
    """Writes the keys of a chunk's documents, in order, unless an earlier run did; returns the number of documents."""
    chunk = chunk.loaded()
    path, digest = _keys_path(folder, chunk.number), chunk.digest().encode()
    if path.is_file():
        with path.open("rb") as file:
            if file.read(_DIGEST) == digest:
                return (path.stat().st_size - _DIGEST) // 8
    keys = [
        document.digest if document.content and document.reason is None else _UNUSED
        for piece in chunk.pieces
        for document in piece.documents(reading)
    ]
    write_atomically(path, digest + b"".join(keys))
    return len(keys)


def _keys_path(folder: Path, chunk: int) -> Path:
    return folder / f"hashes-{chunk:05d}.bin"


class _Run(NamedTuple):
    """Consecutive chunks with about `_AT_ONCE` keys."""

    number: int
    chunks: list[int]
    """The numbers of the chunks."""
    starts: np.ndarray
    """The number, in the corpus, of each chunk's first document."""


class Duplicates:
    """The corpus's duplicate documents: all occurrences of a text but its first.

    Args:
        folder: holds the keys of all chunks, written by `hash_chunk`.
        counts: the number of documents in each chunk, by the chunk's number, in the order of the corpus.
    """

    def __init__(self, folder: Path, counts: dict[int, int], pool: Pool) -> None:
        self._folder = folder
        self._places = {number: place for place, number in enumerate(counts)}
        numbers = list(counts)
        self._starts = np.concatenate(([0], np.cumsum(list(counts.values()), dtype=np.uint64))).astype(np.uint64)
        self._run_starts = np.unique(self._starts[:-1] // _AT_ONCE, return_index=True)[1]
        self._loaded = (-1, np.empty(0, np.uint64))
        bounds = pairwise([*self._run_starts.tolist(), len(numbers)])
        runs = [_Run(run, numbers[first:last], self._starts[first:last]) for run, (first, last) in enumerate(bounds)]
        parts = int(self._starts[-1]) // _AT_ONCE + 1
        key_bounds = np.array([(part << 64) // parts for part in range(parts)], np.uint64)
        keys = Pairs(folder, "keys", len(runs), key_bounds)
        copies = Pairs(folder, "copies", len(runs) + parts, self._starts[self._run_starts])
        for function, items, constants in (
            (_sort_run, runs, (keys, copies)),
            (_match, range(parts), (keys, copies)),
            (_collect, range(len(runs)), (copies,)),
        ):
            for _ in pool.run(function, items, *constants):
                pass

    def __contains__(self, number: int) -> bool:
        """True if the corpus has a chunk of that number."""
        return number in self._places

    def of(self, number: int) -> frozenset[int]:
        """Returns the indices, within chunk `number`, of its duplicates; keeps those of its run for the next call."""
        place = self._places[number]
        run = int(np.searchsorted(self._run_starts, place, side="right")) - 1
        if run != self._loaded[0]:
            self._loaded = run, np.fromfile(_duplicates_path(self._folder, run), np.uint64)
        numbers = self._loaded[1]
        first, last = np.searchsorted(numbers, self._starts[place : place + 2])
        return frozenset((numbers[first:last] - self._starts[place]).tolist())


def _sort_run(run: _Run, keys: Pairs, copies: Pairs) -> None:
    """Writes the first document with each key of the run, and the copies within the run."""
    pairs = []
    for chunk, start in zip(run.chunks, run.starts, strict=True):
        of_chunk = np.fromfile(_keys_path(keys.folder, chunk), np.uint64, offset=_DIGEST)
        used = np.flatnonzero(of_chunk)
        pairs.append(np.stack((of_chunk[used], start + used.astype(np.uint64)), axis=1))
    firsts, later = matched(np.concatenate(pairs))
    keys.write(run.number, firsts)
    copies.write(run.number, later)


def _match(part: int, keys: Pairs, copies: Pairs) -> None:
    """Writes the copies, across runs, with a key in range `part`.

    The runs are in the corpus's order, so the first document with a key is the corpus's first.
    """
    copies.write(keys.files + part, matched(keys.read(part))[1])


def _collect(run: int, copies: Pairs) -> None:
    """Writes the numbers of a run's duplicates, in order.

    Only rank 0 reads them, one run at a time.
    """
    np.unique(copies.read(run)[:, 0]).tofile(_duplicates_path(copies.folder, run))


def _duplicates_path(folder: Path, run: int) -> Path:
    return folder / f"duplicates-{run:05d}.bin"
