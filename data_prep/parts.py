"""What a shard gets from one chunk, on the disk until it is merged: written and read block by block.

A block is two uint32, its numbers of sequences and of tokens, then their lengths (int32), ids (uint16) and masks
(uint8, `mask_copies` bitmaps a sequence), each end to end.
"""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from data_prep.records import PartEntry
from foundation.files import TEMPORARY_SUFFIX, flush, flush_file, with_suffix

_HEADER = struct.Struct("<II")


class Block(NamedTuple):
    """Some sequences of a part."""

    lengths: np.ndarray
    ids: np.ndarray
    masks: np.ndarray


class PartWriter:
    """Writes a part; it takes its name, whole and on the disk, when it is closed. Without a block, no file is made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._size = 0

    def add(self, block: Block) -> None:
        """Appends some sequences."""
        if self._file is None:
            self._file = with_suffix(self._path, TEMPORARY_SUFFIX).open("wb")
        arrays = (block.lengths.astype(np.int32), block.ids.astype(np.uint16, copy=False), block.masks)
        for content in (_HEADER.pack(len(block.lengths), len(block.ids)), *(array.tobytes() for array in arrays)):
            self._file.write(content)
            self._digest.update(content)
            self._size += len(content)

    def close(self) -> tuple[int, str]:
        """Gives the file its name; returns its size and sha256."""
        if self._file is not None:
            flush_file(self._file)
            self._file.close()
            with_suffix(self._path, TEMPORARY_SUFFIX).replace(self._path)
            flush(self._path.parent)
        return self._size, self._digest.hexdigest()


def read_part(path: Path, part: PartEntry, mask_bytes: int) -> Iterator[Block]:
    """The blocks of a part; `mask_bytes` is the size of a sequence's bitmaps.

    Raises:
        OSError: it is missing, or not what was written; in the middle, too.
    """
    digest = hashlib.sha256()

    def read(size: int) -> bytes:
        content = file.read(size)
        digest.update(content)
        if len(content) != size:
            raise OSError(f"{path} has changed since it was written")
        return content

    with path.open("rb") as file:
        while file.tell() < part.size:
            sequences, tokens = _HEADER.unpack(read(_HEADER.size))
            if 4 * sequences + 2 * tokens + mask_bytes * sequences > part.size:
                break
            yield Block(
                np.frombuffer(read(4 * sequences), np.int32),
                np.frombuffer(read(2 * tokens), np.uint16),
                np.frombuffer(read(mask_bytes * sequences), np.uint8),
            )
    if digest.hexdigest() != part.sha256:
        raise OSError(f"{path} has changed since it was written")
