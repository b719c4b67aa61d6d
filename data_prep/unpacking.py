"""Opens files for reading, decompressing gzip, bzip2, xz and Zstandard, which are recognised by content.

Some compressed files consist of blocks that can be decompressed each by itself: those of bzip2 (`data_prep/bzip2.py`),
streams of xz, BGZF in gzip, pzstd's frames. Their beginnings are found by patterns of 9 bytes or more, which hardly
occur elsewhere; a block wrongly found could not be decompressed, which is an error.
"""

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
from typing import Any, BinaryIO, NamedTuple

from data_prep import bzip2
from foundation.config import ConfigError

SUFFIXES = {".gz", ".bz2", ".xz", ".zst"}
DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error)  # raised when reading damaged compressed data
_BLOCK = 1 << 13  # bytes read at a time, compressed or as text
_MEASURED = 1 << 19  # least bytes of text to measure a file's compression
_SEARCHED = 1 << 16  # bytes read at a time in search of a block
_LONGEST_START = 18  # bytes that the patterns of blocks match at most
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


class _Slice(io.RawIOBase):
    """The bytes of a file from `start` to `end`, or to the file's end."""

    def __init__(self, file: BinaryIO, start: int, end: int | None) -> None:
        self._file, self._place, self._end = file, start, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._place)
        content = self._file.read(len(buffer) if self._end is None else min(len(buffer), self._end - self._place))
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)


def _open_zstandard(file: BinaryIO) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(file, "zstd")


class Packing(NamedTuple):
    """A kind of compression: the first bytes of a file, and of a block; how a file is opened."""

    magic: re.Pattern[bytes]
    block: re.Pattern[bytes] | None
    """None: bzip2's blocks begin within bytes."""
    open: Callable[[BinaryIO], Any]


_PACKINGS = {
    "gzip": Packing(re.compile(rb"\x1f\x8b"), re.compile(rb"(?s)\x1f\x8b\x08\x04.{6}\x06\x00BC\x02\x00"), gzip.open),
    "bzip2": Packing(
        re.compile(rb"BZh"),
        None,
        lambda file: io.BufferedReader(_Streams(bz2.BZ2Decompressor, file)),
    ),
    "xz": Packing(
        re.compile(rb"\xfd7zXZ\x00"),
        # an xz stream's header for each kind of checksum
        re.compile(
            b"|".join(
                b"\xfd7zXZ\x00" + re.escape(flags + zlib.crc32(flags).to_bytes(4, "little"))
                for flags in (b"\x00\x00", b"\x00\x01", b"\x00\x04", b"\x00\x0a")
            )
        ),
        lambda file: io.BufferedReader(_Streams(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY), file)),
    ),
    # a skippable frame begins pzstd's files, and in them each frame: it holds the frame's size
    "Zstandard": Packing(
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        re.compile(rb"(?s)\x50\x2a\x4d\x18\x04\x00\x00\x00.{4}\x28\xb5\x2f\xfd"),
        _open_zstandard,
    ),
}
_ARCHIVES = {
    "tar": re.compile(rb"(?s).{257}ustar"),
    "zip": re.compile(rb"PK\x03\x04"),
    "7z": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "RAR": re.compile(rb"Rar!\x1a\x07"),
}


def text_suffix(path: Path) -> str:
    """Returns a file's suffix without that of its compression: .txt for a.txt.gz."""
    return (path.with_suffix("") if path.suffix in SUFFIXES else path).suffix


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


def unpacked(file: BinaryIO, start: int = 0, end: int | None = None) -> Any:
    """Returns a stream that decompresses the blocks of a file from `start` to `end`; None if it is not compressed."""
    packing = packing_of(file)
    if packing is None:
        return None
    if packing.block is None and (start, end) != (0, None):
        return io.BufferedReader(bzip2.Blocks(file, start, end))
    return packing.open(io.BufferedReader(_Slice(file, start, end)))  # pyarrow closes what it reads from


def find_block(file: BinaryIO, start: int, end: int | None = None) -> int | None:
    """Returns the byte, from `start` to before `end`, in which the first block begins; None if there is none."""
    packing = packing_of(file)
    if packing is None:
        return None
    if packing.block is None:
        return bzip2.find_block(file, start, end)
    file.seek(start)
    seen = b""
    while (end is None or start < end) and (block := file.read(_SEARCHED)):
        seen += block
        if found := packing.block.search(seen):
            place = start + found.start()
            return place if end is None or place < end else None
        kept = seen[-_LONGEST_START:]
        start, seen = start + len(seen) - len(kept), kept
    return None


def packing_of(file: BinaryIO) -> Packing | None:
    """Returns the kind of a file's compression, if any; leaves the file at its beginning."""
    file.seek(0)
    beginning = file.read(_LONGEST_START)
    file.seek(0)
    return next((packing for packing in _PACKINGS.values() if packing.magic.match(beginning)), None)


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
    magics = {name: packing.magic for name, packing in _PACKINGS.items()} | _ARCHIVES
    found = next((name for name, magic in magics.items() if magic.match(beginning)), None)
    stray, share = _MOST_ZEROS
    return found or ("binary" if beginning.count(0) > stray + share * len(beginning) else None)
