"""Finds and decompresses the blocks of bzip2, each by itself.

A block begins with 48 known bits, at any bit of a byte; so does the end of a stream, which follows its last block. A
block is decompressed as a stream of its own: a header before its bits, and an end with its checksum after them. 48 bits
hardly occur by chance, once in 35 TB; a block wrongly found could not be decompressed, which is an error.
"""

import bz2
import io
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

BLOCK, END = 0x314159265359, 0x177245385090  # decimal digits of pi and of its square root
_MAGIC, _CHECKSUM = 48, 32  # bits
_READ = 1 << 20  # bytes read at a time in search of blocks
_HEADER = b"BZh9"  # of a stream with blocks of any size
_STREAM = re.compile(rb"BZh[1-9]")
_WITHIN = {  # five of the bytes that a magic number touches are known whatever its first bit; by magic and this bit
    (magic, bit): (magic << (8 - bit) >> 8 & (1 << 40) - 1).to_bytes(5) for magic in (BLOCK, END) for bit in range(8)
}


def find_block(file: BinaryIO, start: int, end: int | None = None) -> int | None:
    """Returns the first byte from `start` to before `end` in which a block begins; None if there is none."""
    for place, magic in _magics(file, start, end):
        if end is not None and place // 8 >= end:
            return None
        if magic == BLOCK:
            return place // 8
    return None


class Blocks(io.RawIOBase):
    """The text of the blocks that begin in the bytes `start` to `end` of a file, or to the file's end."""

    def __init__(self, file: BinaryIO, start: int, end: int | None) -> None:
        self._texts = _texts(file, start, end)
        self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            text = next(self._texts, None)
            if text is None:
                return 0
            self._text = memoryview(text)
        size = min(len(buffer), len(self._text))
        buffer[:size] = self._text[:size]
        self._text = self._text[size:]
        return size


def _texts(file: BinaryIO, start: int, end: int | None) -> Iterator[bytes]:
    """Yields each block's text; `start` is that of a block.

    Raises:
        EOFError: the file ends within a block.
        OSError: a block is damaged, or something else follows a stream.
    """
    latest: tuple[int, int] | None = None
    for place, magic in _magics(file, start):
        if latest and latest[1] == BLOCK:
            yield _text(file, latest[0], place)
        elif latest:
            _require_stream(file, latest[0], place)
        if magic == BLOCK and end is not None and place // 8 >= end:
            return
        latest = place, magic
    if latest is None or latest[1] == BLOCK:
        raise EOFError("the compressed data are cut short")
    _require_stream(file, latest[0], None)


def _require_stream(file: BinaryIO, end: int, following: int | None) -> None:
    """Requires that only zeros, and the next stream's header, are between a stream's end and what was found next.

    Otherwise a block whose beginning is damaged would be lost. Places are in bits; None is the end of the file.
    """
    place = -(-(end + _MAGIC + _CHECKSUM) // 8)
    stop = file.seek(0, io.SEEK_END) if following is None else following // 8 - len(_HEADER)
    sound = place <= stop
    file.seek(place)
    while sound and place < stop:
        zeros = file.read(min(_READ, stop - place))
        sound, place = not any(zeros), place + len(zeros)
    if following is not None:
        sound = sound and following % 8 == 0 and _STREAM.fullmatch(file.read(len(_HEADER))) is not None
    if not sound:
        raise OSError("other data, or a damaged block, after a stream")


def _text(file: BinaryIO, start: int, end: int) -> bytes:
    """Decompresses the block from bit `start` to before bit `end`."""
    size, first, after = end - start, start // 8, -(-end // 8)
    file.seek(first)
    bits = int.from_bytes(file.read(after - first)) >> 8 * after - end & (1 << size) - 1
    checksum = bits >> max(0, size - _MAGIC - _CHECKSUM) & (1 << _CHECKSUM) - 1  # of one block, and so of the stream
    size += _MAGIC + _CHECKSUM
    stream = ((bits << _MAGIC | END) << _CHECKSUM | checksum) << -size % 8
    decompressor = bz2.BZ2Decompressor()
    text = decompressor.decompress(_HEADER + stream.to_bytes(-(-size // 8)))
    if not decompressor.eof:
        raise EOFError("a block of the compressed data is damaged")
    return text


def _magics(file: BinaryIO, start: int, end: int | None = None) -> Iterator[tuple[int, int]]:
    """Yields the bits at which blocks and ends begin, from the byte `start` on, each with its magic number.

    With `end`, searches hardly further; the last ones may begin after it.
    """
    held, place = b"", start  # the bytes searched, and where in the file they begin
    while end is None or place < end:
        file.seek(place + len(held))
        if not (read := file.read(_READ)):
            return
        held += read
        found = []
        for (magic, bit), within in _WITHIN.items():
            at = held.find(within, 1, len(held) - 1)
            while at != -1:
                if int.from_bytes(held[at - 1 : at + 6]) >> 8 - bit & (1 << _MAGIC) - 1 == magic:
                    found.append((8 * (place + at - 1) + bit, magic))
                at = held.find(within, at + 1, len(held) - 1)
        yield from sorted(found)
        searched = max(0, len(held) - 6)  # a magic number that begins later may not be whole
        held, place = held[searched:], place + searched
