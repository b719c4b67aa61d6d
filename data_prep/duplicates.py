"""Finds exact copies of documents anywhere in the corpus: a first pass over the input keeps an 8-byte hash of each.

Two different documents with the same hash would count as copies. Among 100 million documents, the chance of any such
pair is 1 in 3,700 (n^2 / 2^65).
"""

from pathlib import Path

import numpy as np

from data_prep.chunks import Chunk
from data_prep.formats import Reading
from foundation.files import write_atomically

_SORTED_AT_ONCE = 1 << 23  # hashes; sorting takes 32 bytes each
_UNUSED = bytes(8)  # hash of a document that is dropped anyway and never counts as a copy


def hash_chunk(chunk: Chunk, reading: Reading, folder: Path) -> None:
    """Writes the hashes of a chunk's documents, in order, to `hashes_path`."""
    hashes = [
        document.digest if document.content and document.reason is None else _UNUSED
        for piece in chunk.pieces
        for document in piece.documents(reading)
    ]
    write_atomically(hashes_path(folder, chunk.number), b"".join(hashes))


def hashes_path(folder: Path, number: int) -> Path:
    """The file with the hashes of a chunk's documents."""
    return folder / f"hashes-{number:05d}.bin"


class Duplicates:
    """The corpus's duplicate documents: all occurrences of a text but its first.

    Args:
        folder: holds the hashes of all chunks, written by `hash_chunk`.
        chunks: number of chunks.
    """

    def __init__(self, folder: Path, chunks: int) -> None:
        self._paths = [hashes_path(folder, number) for number in range(chunks)]
        sizes = [path.stat().st_size // 8 for path in self._paths]
        self._starts = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        parts = int(self._starts[-1]) // _SORTED_AT_ONCE + 1
        found = [self._find(part, parts) for part in range(parts)]
        self._numbers = np.sort(np.concatenate(found))

    def of(self, number: int) -> frozenset[int]:
        """Returns the indices, within chunk `number`, of its duplicates."""
        first, last = np.searchsorted(self._numbers, self._starts[number : number + 2])
        return frozenset((self._numbers[first:last] - self._starts[number]).tolist())

    def _find(self, part: int, parts: int) -> np.ndarray:
        """Indices, in the corpus, of the duplicates whose hash is `part` modulo `parts`."""
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
        order = np.argsort(hashes, kind="stable")  # keeps equal hashes in corpus order
        copies = hashes[order[1:]] == hashes[order[:-1]]
        return numbers[order[1:][copies]]
