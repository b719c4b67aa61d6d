"""Files of arrays of different lengths, megatron-core's IndexedDataset format: `PREFIX.bin` and `PREFIX.idx`.

`.bin` is the items end to end. `.idx` is, little-endian: 9 bytes `MMIDIDX` 0 0, uint64 version 1, uint8
element type, uint64 items, uint64 document marks (items + 1: every item is its own document), then int32
lengths (elements), int64 offsets (bytes) and int64 document marks. Source:
megatron/core/datasets/indexed_dataset.py, megatron-core 0.16.1, whose import costs seconds, so reading and
writing are done here.
"""

import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.config import ConfigError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPE_CODES: dict[np.dtype[Any], int] = {
    np.dtype(np.uint8): 1,
    np.dtype(np.uint16): 8,
}  # DType in indexed_dataset.py
_TYPES = {code: dtype for dtype, code in _TYPE_CODES.items()}
TEMPORARY_SUFFIX = ".tmp"


class IndexedFile:
    """One indexed file, memory-mapped for reading.

    Args:
        prefix: path without `.bin` and `.idx`.

    Attributes:
        lengths: int32 [items], in elements.
        offsets: int64 [items], in bytes, as the format stores them.
        data: the whole `.bin` as one array of the file's type (uint8 or uint16).

    Raises:
        ConfigError: a file is missing, or is not what its index says.
    """

    def __init__(self, prefix: Path) -> None:
        index_path, data_path = _with_suffix(prefix, ".idx"), _with_suffix(prefix, ".bin")
        try:
            index = np.memmap(index_path, np.uint8, "r")
            dtype, items, marks = _parse_header(index, index_path)
            self.lengths = np.frombuffer(index, np.int32, items, _HEADER.size)
            self.offsets = np.frombuffer(index, np.int64, items, _HEADER.size + 4 * items)
            if len(index) != _HEADER.size + 12 * items + 8 * marks:
                raise ConfigError(f"{index_path}: damaged, its size does not fit its {items} items; rebuild the shard")
            self.data = np.memmap(data_path, dtype, "r")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{prefix}: cannot be read as an indexed file ({error}); rebuild the shard") from None
        ends = np.cumsum(self.lengths, dtype=np.int64)
        if len(self.data) != (ends[-1] if items else 0):
            raise ConfigError(f"{data_path}: damaged, its size does not fit its index; rebuild the shard")
        if (self.offsets != (ends - self.lengths) * self.data.itemsize).any() or (self.lengths < 0).any():
            raise ConfigError(f"{index_path}: damaged, its offsets do not follow from its lengths; rebuild the shard")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, item: int) -> np.ndarray:
        start = int(self.offsets[item]) // self.data.itemsize
        return self.data[start : start + int(self.lengths[item])]


def write_indexed_arrays(prefix: Path, data: np.ndarray, lengths: np.ndarray) -> dict[str, str]:
    """Writes the items that lie end to end in `data` (uint8 or uint16), `lengths` elements each, as both files.

    Returns:
        The sha256 of each file by its name.
    """
    offsets = (np.cumsum(lengths, dtype=np.int64) - lengths) * data.itemsize
    marks = np.arange(len(lengths) + 1, dtype=np.int64)
    header = _HEADER.pack(_MAGIC, 1, _TYPE_CODES[data.dtype], len(lengths), len(marks))
    index = header + lengths.astype(np.int32).tobytes() + offsets.tobytes() + marks.tobytes()
    return {
        path.name: write_atomically(path, content)
        for path, content in (
            (_with_suffix(prefix, ".bin"), data.tobytes()),
            (_with_suffix(prefix, ".idx"), index),
        )
    }


def write_atomically(path: Path, content: bytes) -> str:
    """Writes a file that is either absent or whole, whenever the power fails; returns its sha256."""
    temporary = _with_suffix(path, TEMPORARY_SUFFIX)
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse_header(index: np.ndarray, path: Path) -> tuple[np.dtype[Any], int, int]:
    if len(index) < _HEADER.size:
        raise ConfigError(f"{path}: damaged, shorter than its header; rebuild the shard")
    magic, version, code, items, marks = _HEADER.unpack(index[: _HEADER.size].tobytes())
    if magic != _MAGIC or version != 1 or code not in _TYPES:
        raise ConfigError(f"{path}: not an index of ids or masks; rebuild the shard")
    return _TYPES[code], items, marks


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
