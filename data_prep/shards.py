"""Files of variable-length arrays in megatron-core's IndexedDataset format: `PREFIX.bin` and `PREFIX.idx`.

`.bin` holds the concatenated items. `.idx` holds, little-endian: 9 bytes `MMIDIDX` 0 0, uint64 version 1, uint8
element type, uint64 items, uint64 document marks (items + 1: every item is its own document), then int32
lengths (elements), int64 offsets (bytes) and int64 document marks. Source:
megatron/core/datasets/indexed_dataset.py of megatron-core 0.16.1. Importing megatron-core takes seconds, so this
module reads and writes the format itself. It also compares a shard folder's files with the folder's manifest.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.manifest import Manifest, ShardEntry
from data_prep.tokens import TOKENIZER_NAME, SubwordTokenizer
from electra_sampler.foundation.config import ConfigError, explained
from electra_sampler.foundation.files import NewFile, file_sha256, with_suffix, write_atomically

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPE_CODES: dict[np.dtype[Any], int] = {
    np.dtype(np.uint8): 1,
    np.dtype(np.uint16): 8,
}  # DType in indexed_dataset.py
_TYPES = {code: dtype for dtype, code in _TYPE_CODES.items()}


class IndexedFile:
    """One indexed file, memory-mapped for reading. Opening it reads only the header, at any size.

    Args:
        prefix: path without `.bin` and `.idx`.

    Attributes:
        dtype: type of the items, uint8 or uint16.
        lengths: int32 [items], in elements.
        offsets: int64 [items], in bytes, as stored in the format.
        size: bytes of the `.bin` file.

    Raises:
        ConfigError: a file is missing, or its size contradicts the index.
    """

    def __init__(self, prefix: Path) -> None:
        index_path, self._data_path = with_suffix(prefix, ".idx"), with_suffix(prefix, ".bin")
        with explained(
            f"{prefix}: cannot be read as an indexed file", "rebuild the shard", (OSError, ValueError, struct.error)
        ):
            index = mapped(index_path, np.dtype(np.uint8))
            magic, version, code, items, marks = _HEADER.unpack_from(index.data)
            if magic != _MAGIC or version != 1 or code not in _TYPES:
                raise ConfigError(f"{index_path}: not an index of ids or masks; rebuild the shard")
            self.dtype = _TYPES[code]
            if len(index) != _HEADER.size + 12 * items + 8 * marks:
                raise ConfigError(
                    f"{index_path}: damaged: its size does not match its {items} items; rebuild the shard"
                )
            self.lengths = np.frombuffer(index, np.int32, items, _HEADER.size)
            self.offsets = np.frombuffer(index, np.int64, items, _HEADER.size + 4 * items)
            self.size = self._data_path.stat().st_size
        end = int(self.offsets[-1]) + int(self.lengths[-1]) * self.dtype.itemsize if items else 0
        if self.size != end:
            raise ConfigError(f"{self._data_path}: damaged: its size does not match its index; rebuild the shard")

    @cached_property
    def data(self) -> np.ndarray:
        """The whole `.bin` as one array, mapped on first access."""
        return mapped(self._data_path, self.dtype)

    def require_sound(self) -> None:
        """Checks the whole index.

        Raises:
            ConfigError: the offsets do not match the lengths.
        """
        ends = np.cumsum(self.lengths, dtype=np.int64)
        if (self.offsets != (ends - self.lengths) * self.dtype.itemsize).any() or (self.lengths < 0).any():
            raise ConfigError(
                f"{self._data_path.with_suffix('.idx')}: damaged: its offsets do not match its lengths; rebuild the"
                " shard"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, item: int) -> np.ndarray:
        start = int(self.offsets[item]) // self.dtype.itemsize
        return self.data[start : start + int(self.lengths[item])]


def mapped(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns a file memory-mapped as an array, in a third of the time of np.memmap: batches open many shards.

    Raises:
        OSError, ValueError: the file cannot be read, is empty, or does not hold a whole number of elements.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # never waits for the writer of a pipe
    try:
        return np.frombuffer(mmap.mmap(file, 0, access=mmap.ACCESS_READ), dtype)
    finally:
        os.close(file)


class IndexedWriter:
    """Writes an indexed file piece by piece; `close` gives both files their final names, once they are complete.

    Args:
        prefix: path without `.bin` and `.idx`. dtype: type of the items, uint8 or uint16.
    """

    def __init__(self, prefix: Path, dtype: Any) -> None:
        self._index_path, self._dtype = with_suffix(prefix, ".idx"), np.dtype(dtype)
        self._data = NewFile(with_suffix(prefix, ".bin"))
        self._lengths: list[np.ndarray] = []

    def add(self, data: np.ndarray, lengths: np.ndarray) -> None:
        """Appends the items concatenated in `data`; item i has `lengths[i]` elements."""
        self._data.write(data.astype(self._dtype, copy=False).tobytes())
        self._lengths.append(lengths.astype(np.int32))

    def close(self) -> dict[str, tuple[int, str]]:
        """Completes both files; returns their size and sha256 by suffix."""
        lengths = np.concatenate(self._lengths)
        offsets = (np.cumsum(lengths, dtype=np.int64) - lengths) * self._dtype.itemsize
        marks = np.arange(len(lengths) + 1, dtype=np.int64)
        header = _HEADER.pack(_MAGIC, 1, _TYPE_CODES[self._dtype], len(lengths), len(marks))
        index = header + lengths.tobytes() + offsets.tobytes() + marks.tobytes()
        return {".bin": self._data.close(), ".idx": (len(index), write_atomically(self._index_path, index))}


def remove_files(prefix: Path, ending: str = "") -> None:
    """Removes the files of a shard, ids and masks, or those with this ending to their names."""
    for suffix in (".bin", ".idx", ".mask.bin", ".mask.idx"):
        with_suffix(prefix, suffix + ending).unlink(missing_ok=True)


def tokenizer_problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yields the differences between a folder's tokenizer and the one that its manifest names; normally none."""
    tokenizer = SubwordTokenizer.load(folder / TOKENIZER_NAME)
    ours = (tokenizer.sha256(), tokenizer.vocab_size, tokenizer.special)
    if ours != (manifest.tokenizer_sha256, manifest.vocab_size, manifest.special_tokens):
        yield f"{TOKENIZER_NAME}: not the tokenizer named by the manifest, or its special ids differ"
    for name, expected in manifest.tokenizer_files.items():
        path = folder / TOKENIZER_NAME / name
        if not path.is_file() or file_sha256(path) != expected:
            yield f"{TOKENIZER_NAME}/{name}: missing, or changed since it was written"


def file_problems(folder: Path, shard: ShardEntry, *, checksums: bool = True) -> list[str]:
    """Returns a line per missing or changed file of a shard; compares sizes and, if `checksums`, sha256."""
    found = (
        file_problem(folder / (shard.name + suffix), size, digest if checksums else None)
        for suffix, (size, digest) in shard.written.items()
    )
    return list(filter(None, found))


def file_problem(path: Path, size: int, digest: str | None) -> str | None:
    """Compares a file with its expected size and, if given, sha256; returns the difference, or None."""
    try:
        found = path.stat().st_size
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    if found != size:
        return f"{path.name}: {found} bytes, expected {size}"
    return None if not digest or file_sha256(path) == digest else f"{path.name}: changed since it was written (sha256)"
