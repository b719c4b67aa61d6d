"""Finds exact copies of documents, however far apart: a first pass over the input keeps 8 bytes of each document.

Two different documents with the same 8 bytes would be taken for copies; among 100 million documents the chance that
there is one such pair is 1 in 3,700 (n^2 / 2^65).
"""

from pathlib import Path

import numpy as np

from data_prep.chunks import Chunk
from data_prep.formats import Reading
from foundation.files import write_atomically

_SORTED_AT_ONCE = 1 << 23  # hashes, 32 bytes each with all that sorting needs
_UNUSED = bytes(8)  # of a document that is dropped anyway, and is no copy of any


def hash_chunk(chunk: Chunk, reading: Reading, folder: Path) -> None:
    """Writes the hashes of a chunk's documents, in order, into the folder."""
    hashes = [
        document.digest if document.content and document.reason is None else _UNUSED
        for piece in chunk.pieces
        for document in piece.documents(reading)
    ]
    write_atomically(hashes_path(folder, chunk.number), b"".join(hashes))


def hashes_path(folder: Path, number: int) -> Path:
    """Where the hashes of a chunk's documents lie."""
    return folder / f"hashes-{number:05d}.bin"


class Duplicates:
    """The documents that occur earlier in the corpus; the first of each kind is none.

    Args:
        folder: holds the hashes of all chunks, `hash_chunk`'s.
        chunks: how many there are.
    """

    def __init__(self, folder: Path, chunks: int) -> None:
        self._paths = [hashes_path(folder, number) for number in range(chunks)]
        sizes = [path.stat().st_size // 8 for path in self._paths]
        self._starts = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        parts = int(self._starts[-1]) // _SORTED_AT_ONCE + 1
        found = [self._find(part, parts) for part in range(parts)]
        self._numbers = np.sort(np.concatenate(found))

    def of(self, number: int) -> frozenset[int]:
        """Numbers of such documents in a chunk."""
        first, last = np.searchsorted(self._numbers, self._starts[number : number + 2])
        return frozenset((self._numbers[first:last] - self._starts[number]).tolist())

    def _find(self, part: int, parts: int) -> np.ndarray:
        """Numbers, in the corpus, of the copies whose hash is `part` modulo `parts`."""
        gathered = [
            (hashes[chosen], start + np.flatnonzero(chosen))
            for start, hashes in zip(
                self._starts.tolist(), (np.fromfile(path, np.uint64) for path in self._paths), strict=False
            )
            if (chosen := (hashes % parts == part) & (hashes != 0)).any()
        ]
        if not gathered:
            return np.empty(0, np.int64)
        hashes, numbers = (np.concatenate(arrays) for arrays in zip(*gathered, strict=True))
        order = np.argsort(hashes, kind="stable")  # equal hashes stay in the corpus's order
        copies = hashes[order[1:]] == hashes[order[:-1]]
        return numbers[order[1:][copies]]
