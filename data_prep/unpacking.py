"""Opens files for reading, decompressing gzip, bzip2, xz and Zstandard, which are recognised by content."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from foundation.config import ConfigError

_SUFFIXES = {".gz", ".bz2", ".xz", ".zst"}
DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error)  # raised when reading damaged compressed data
_BLOCK = 1 << 13  # bytes read at a time, compressed or as text
_MEASURED = 1 << 19  # least bytes of text to measure a file's compression
_LONGEST_MAGIC = 6
_XZ_MEMORY = 1 << 28  # bytes; xz -9 needs a quarter of this, and a file may demand 4 GB
_MOST_ZEROS = (16, 0.05)  # zero bytes allowed in text, plus this share of it; UTF-16 has nearly half, tar a tenth


class _Streams(io.RawIOBase):
    """Decompresses concatenated streams, each with its own decompressor; zeros after a stream are padding.

    Python's own readers mistake a damaged stream after the first for the end of the file.
    """

    def __init__(self, new_decompressor: Callable[[], Any], file: BinaryIO) -> None:
        self._new, self._file = new_decompressor, file
        self._decompressor, self._packed = new_decompressor(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._decompressor.eof or self._begin_next():
            if self._decompressor.needs_input and not self._packed:
                self._packed = self._file.read(_BLOCK)
                if not self._packed:
                    raise EOFError("the compressed data are cut short")
            text = self._decompressor.decompress(self._packed, len(buffer))
            self._packed = b""
            if text:
                buffer[: len(text)] = text
                return len(text)
        return 0

    def _begin_next(self) -> bool:
        """Starts the next of the concatenated streams; returns False if there is none."""
        rest = self._decompressor.unused_data.lstrip(b"\0")
        while not rest:
            if not (block := self._file.read(_BLOCK)):
                return False
            rest = block.lstrip(b"\0")
        self._decompressor, self._packed = self._new(), rest
        return True


def _open_zstandard(file: BinaryIO) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(file, "zstd")


_PACKINGS: dict[str, tuple[re.Pattern[bytes], Callable[[BinaryIO], Any]]] = {
    "gzip": (re.compile(rb"\x1f\x8b"), gzip.open),
    "bzip2": (re.compile(rb"BZh"), lambda file: io.BufferedReader(_Streams(bz2.BZ2Decompressor, file))),
    "xz": (
        re.compile(rb"\xfd7zXZ\x00"),
        lambda file: io.BufferedReader(_Streams(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY), file)),
    ),
    # the second pattern is a skippable frame, with which pzstd's files begin
    "Zstandard": (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _open_zstandard),
}  # pattern of the first bytes, and opener
_ARCHIVES = {
    "tar": re.compile(rb"(?s).{257}ustar"),
    "zip": re.compile(rb"PK\x03\x04"),
    "7z": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "RAR": re.compile(rb"Rar!\x1a\x07"),
}


def text_suffix(path: Path) -> str:
    """Returns a file's suffix without that of its compression: .txt for a.txt.gz."""
    return (path.with_suffix("") if path.suffix in _SUFFIXES else path).suffix


def opened(path: Path) -> BinaryIO:
    """Opens a file without decompressing it.

    Raises:
        ConfigError: the file is missing or not readable.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(
            f"input: {path} cannot be opened ({error.strerror}); check that it exists and is readable"
        ) from None


def unpacked(file: BinaryIO) -> Any:
    """Returns a stream that decompresses the file from its first byte; None if the file is not compressed."""
    beginning = file.read(_LONGEST_MAGIC)
    file.seek(0)
    opener = next((opener for magic, opener in _PACKINGS.values() if magic.match(beginning)), None)
    return opener(file) if opener else None


def text_per_byte(path: Path) -> float:
    """Returns the bytes of text per byte of a compressed file, measured at its beginning.

    Decompressors read ahead: the count of compressed bytes belongs to the text only when they need more.
    """
    size = place = 0
    with opened(path) as file, suppress(*DAMAGED):
        stream = unpacked(file)
        while (block := stream.read(_BLOCK)) and (size < _MEASURED or file.tell() == place):
            size, place = size + len(block), file.tell()
    return size / max(1, place)


def not_text(beginning: bytes) -> str | None:
    """Returns the kind of data if it is not text (compressed again, an archive, or binary), else None."""
    magics = {name: magic for name, (magic, _) in _PACKINGS.items()} | _ARCHIVES
    found = next((name for name, magic in magics.items() if magic.match(beginning)), None)
    stray, share = _MOST_ZEROS
    return found or ("binary" if beginning.count(0) > stray + share * len(beginning) else None)
