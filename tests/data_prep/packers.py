"""Compresses text: as a whole, and in independent blocks, as the tools do whose files several workers can read."""

import bz2
import gzip
import lzma
import struct
import zlib
from collections.abc import Callable

import pyarrow

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}
"""How a whole file is compressed, by its suffix."""
_BLOCK = 5000  # bytes of text


def bgzf(text: bytes) -> bytes:
    """The text as bgzip writes it: gzip members, each with its size in a field BC."""
    members = []
    for part in _parts(text):
        deflate = zlib.compressobj(wbits=-15)
        packed = deflate.compress(part) + deflate.flush()
        header = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x06\x00BC\x02\x00" + struct.pack("<H", len(packed) + 25)
        members.append(header + packed + struct.pack("<II", zlib.crc32(part), len(part)))
    return b"".join(members)


def pzstd(text: bytes) -> bytes:
    """The text as pzstd writes it: before each frame, a skippable one that holds its size."""
    frames = [pyarrow.compress(part, "zstd", asbytes=True) for part in _parts(text)]
    return b"".join(b"\x50\x2a\x4d\x18\x04\x00\x00\x00" + struct.pack("<I", len(frame)) + frame for frame in frames)


def _parts(text: bytes) -> list[bytes]:
    return [text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK)]


IN_BLOCKS = {
    ".gz": bgzf,
    ".zst": pzstd,
    ".bz2": lambda text: b"".join(map(bz2.compress, _parts(text))),
    ".xz": lambda text: b"".join(map(lzma.compress, _parts(text))),
}
