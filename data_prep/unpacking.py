"""Opens files for reading, decompressing gzip, bzip2, xz and Zstandard, which are recognized by content.

Large files of gzip and bzip2 are read from any place, by rapidgzip and an index of the file. To make the index, all
cores decompress the file once. Without rapidgzip one worker reads the file from its beginning and writes
all its shards, with the same bytes.
"""

import bz2
import hashlib
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from backports.zstd import ZstdDecompressor, ZstdError

from data_prep.sources import Source
from electra_sampler.foundation.command_line import print_warning, printable
from electra_sampler.foundation.config import explained
from electra_sampler.foundation.files import write_atomically
from electra_sampler.foundation.machine import cores

DAMAGED = (EOFError, OSError, RuntimeError, lzma.LZMAError, zlib.error, ZstdError)
"""Errors that reading damaged compressed data raises."""
TOO_WIDE = re.compile("too much memory|Memory usage limit")
"""What the errors of zstd and xz say when an intact file needs a larger window than a worker's memory allows."""
_BLOCK = 1 << 13  # bytes read at a time, compressed or as text
_MEASURED = 1 << 19  # least bytes of text to measure a file's compression
_XZ_MEMORY = 1 << 28  # bytes; xz -9 needs a quarter of this, and a file may demand 4 GB
_MOST_ZEROS = (16, 0.05)  # zero bytes allowed in text, plus this share of it; UTF-16 has nearly half, tar a tenth


class _Streams(io.RawIOBase):
    """Decompresses concatenated streams of one of the kinds in `_PACKINGS`, each with its own decompressor.

    Python's own readers mistake a damaged stream after the first for the end of the file.
    """

    def __init__(self, kind: str, file: BinaryIO) -> None:
        self._kind, self._file = kind, file
        self._decompressor, self._packed = _PACKINGS[kind][1](), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._decompressor.eof or self._begin_next():
            if getattr(self._decompressor, "needs_input", True) and not self._packed:
                self._packed = self._file.read(_BLOCK)
                if not self._packed:
                    raise EOFError("the compressed data are cut short")
            text = self._decompressor.decompress(self._packed, len(buffer))
            self._packed = getattr(self._decompressor, "unconsumed_tail", b"")  # zlib's; the others keep it
            if text:
                buffer[: len(text)] = text
                return len(text)
        return 0

    def _begin_next(self) -> bool:
        """Starts the next of the concatenated streams; returns False if there is none."""
        if rest := _next_stream(self._kind, self._file, self._decompressor.unused_data):
            self._decompressor, self._packed = _PACKINGS[self._kind][1](), rest
        return bool(rest)


def _next_stream(kind: str, file: BinaryIO, rest: bytes = b"") -> bytes:
    """Returns the first bytes of the stream behind another; b"" if there are only zeros, which pad the file.

    `rest` are the bytes behind that stream that have been read.

    Raises:
        OSError: there is anything else, or zeros before a stream; only the format of xz allows these.
    """
    end = file.tell() - len(rest)
    rest = rest.lstrip(b"\0")
    while len(rest) < _LONGEST_MAGIC and (more := file.read(_BLOCK)):
        rest = (rest + more).lstrip(b"\0")
    if rest and not (_PACKINGS[kind][0].match(rest) and (kind == "xz" or file.tell() - len(rest) == end)):
        raise OSError(f"behind byte {end:,} is neither another stream of {kind} nor only zeros")
    return rest


_PACKINGS: dict[str, tuple[re.Pattern[bytes], Callable[[], Any]]] = {
    "gzip": (re.compile(rb"\x1f\x8b"), partial(zlib.decompressobj, 31)),
    "bzip2": (re.compile(rb"BZh"), bz2.BZ2Decompressor),
    "xz": (re.compile(rb"\xfd7zXZ\x00"), partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY)),
    # a skippable frame begins pzstd's files
    "Zstandard": (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), ZstdDecompressor),
}
"""The kinds of compression: the first bytes of a stream, and its decompressor."""
_LONGEST_MAGIC = 6  # bytes
_ARCHIVES = {
    "tar": re.compile(rb"(?s).{257}ustar"),
    "zip": re.compile(rb"PK\x03\x04"),
    "7z": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "RAR": re.compile(rb"Rar!\x1a\x07"),
}


def opened(path: Path) -> io.BufferedReader:
    """Opens a file without decompressing it.

    Raises:
        ConfigError: the file is missing or not readable.
    """
    with explained(f"input: {path} cannot be opened", "check that it exists and is readable", OSError):
        return path.open("rb")


def unpacked(file: io.BufferedReader) -> Any:
    """Returns a stream that decompresses a file, which is at its beginning; None if it is not compressed."""
    packing = packing_of(file)
    return io.BufferedReader(_Streams(packing, file)) if packing else None


def packing_of(file: io.BufferedReader) -> str | None:
    """Returns the kind of compression of a file that is at its beginning, if any; leaves it there."""
    return next((name for name, (magic, _) in _PACKINGS.items() if magic.match(file.peek())), None)


def _packing_at(path: Path) -> str | None:
    with opened(path) as file:
        return packing_of(file)


def text_per_byte(path: Path) -> float | None:
    """Returns the bytes of text per byte of a compressed file, measured at its beginning; None if it is not compressed.

    Decompressors read ahead, so text and compressed bytes are compared only when the decompressor needs more.
    """
    size = place = 0
    with opened(path) as file, suppress(*DAMAGED):
        if (stream := unpacked(file)) is None:
            return None
        while (block := stream.read(_BLOCK)) and (size < _MEASURED or file.tell() == place):
            size, place = size + len(block), file.tell()
    return size / max(1, place)


def not_text(beginning: bytes) -> str | None:
    """Returns the kind of data if it is not text (compressed again, an archive, or binary), else None."""
    magics = {name: magic for name, (magic, _) in _PACKINGS.items()} | _ARCHIVES
    found = next((name for name, magic in magics.items() if magic.match(beginning)), None)
    stray, share = _MOST_ZEROS
    return found or ("binary" if beginning.count(0) > stray + share * len(beginning) else None)


def can_seek(source: Source) -> bool:
    """True if a file is of gzip or bzip2 and rapidgzip is installed; warns if only rapidgzip is missing."""
    if _packing_at(source.path) not in ("gzip", "bzip2"):
        return False
    if find_spec("rapidgzip"):
        return True
    print_warning(
        f"{printable(source.name)}: only one worker can read it; for several, pip install 'electra-sampler[packed]'"
    )
    return False


def make_seek_index(source: Source, folder: Path) -> None:
    """Decompresses a file, on all cores, to write the index that `open_seekable` needs.

    There is none of a file that is damaged, or padded and of gzip, which rapidgzip refuses: `Reader` tells which, as it
    reads the file from its beginning.
    """
    for threads in (cores(), 1):  # several may stumble over bits within a block that look like the beginning of one
        with suppress(*DAMAGED, ValueError):
            write_atomically(index_path(source, folder), _seek_index(source.path, threads))
            return


def _seek_index(path: Path, threads: int) -> bytes:
    with _opened(path, threads) as file:
        if _packing_at(path) == "gzip":
            file.export_index(index := io.BytesIO())  # into a file, a full disk would abort this process
            return index.getvalue()
        offsets = [*file.block_offsets().items()]
    with opened(path) as raw:  # rapidgzip ignores whatever is behind a stream of bzip2, unless it is another
        # to the end of the last stream; with one thread, rapidgzip says where the 80 bits that end it begin
        raw.seek(-(-offsets[-1][0] // 8) + (10 if threads == 1 else 0))
        if _next_stream("bzip2", raw):
            raise EOFError("the compressed data are cut short")
    return json.dumps(offsets).encode()


def open_seekable(source: Source, folder: Path) -> Any:
    """Opens a compressed file, with the index that `make_seek_index` wrote, for reading from any place."""
    index = index_path(source, folder)
    file = _opened(source.path, 1)
    if _packing_at(source.path) == "bzip2":
        file.set_block_offsets(dict(json.loads(index.read_text())))
    else:
        file.import_index(str(index))
    return file


def index_path(source: Source, folder: Path) -> Path:
    """Returns the path, in `folder`, of the index of a compressed file."""
    return folder / f"index-{hashlib.blake2b(source.key.encode(), digest_size=8).hexdigest()}"


def _opened(path: Path, threads: int) -> Any:
    import rapidgzip  # type: ignore[import-not-found]

    return (rapidgzip.IndexedBzip2File if _packing_at(path) == "bzip2" else rapidgzip.RapidgzipFile)(
        str(path), parallelization=threads
    )
