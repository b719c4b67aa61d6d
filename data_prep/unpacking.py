"""Opens files for reading, unpacking gzip, bzip2, xz and Zstandard, which are recognised by content."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.config import ConfigError

SUFFIXES = {".gz", ".bz2", ".xz", ".zst"}
DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error)  # what reading damaged compressed data raises


def _open_zstandard(file: BinaryIO) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(file, "zstd")


_OPENERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstandard,
}  # by each format's first bytes
_LONGEST_MAGIC = max(map(len, _OPENERS))


def opened(path: Path) -> BinaryIO:
    """The file as it lies on disk.

    Raises:
        ConfigError: it is gone or may not be read.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"input: {path} cannot be opened ({error.strerror}); check that it is there") from None


def unpacked(file: BinaryIO) -> Any:
    """A stream of the file's text where the file is compressed; None where it is plain. Begins at its first byte."""
    beginning = file.read(_LONGEST_MAGIC)
    file.seek(0)
    opener = next((opener for magic, opener in _OPENERS.items() if beginning.startswith(magic)), None)
    return opener(file) if opener else None
