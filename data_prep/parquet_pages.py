"""Sizes of a Parquet file's pages, from their headers: a value lies whole in its page, and so is no larger.

A reader unpacks a page before it can say how large its values are; the header says it before, in Thrift's compact
protocol (https://parquet.apache.org/docs/file-format/, PageHeader).
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

_UNPACKED, _PACKED = 2, 3  # fields of a header: bytes of the page, as it will be and as it lies in the file
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = *range(11), 12
_DEEPEST = 8  # structs in structs; a page's header has two


def page_sizes(file: BinaryIO, chunk: Any) -> Iterator[int]:
    """Bytes of each page, unpacked, of a column chunk (pyarrow's metadata of it), its dictionary first.

    Raises:
        OSError: a header is damaged.
    """
    place = chunk.dictionary_page_offset or chunk.data_page_offset
    end = place + chunk.total_compressed_size
    while place < end:
        file.seek(place)
        sizes = dict(_integers(file))
        if min(sizes.get(_UNPACKED, -1), sizes.get(_PACKED, -1)) < 0:
            raise OSError("the header of a page is damaged")
        yield sizes[_UNPACKED]
        place = file.tell() + sizes[_PACKED]


def _integers(file: BinaryIO, depth: int = 0) -> Iterator[tuple[int, int]]:
    """Number and value of a struct's integers; leaves the file at its end."""
    number = 0
    while (head := _byte(file)) != _STOP:
        number = number + (head >> 4) if head >> 4 else _integer(file)
        kind = head & 15
        if kind in (_I16, _I32, _I64):
            yield number, _integer(file)
        elif kind not in (_TRUE, _FALSE):  # which are in the head
            _skip(file, kind, depth)


def _skip(file: BinaryIO, kind: int, depth: int) -> None:
    if kind == _STRUCT and depth < _DEEPEST:
        for _ in _integers(file, depth + 1):
            pass
    elif kind in (_LIST, _SET) and depth < _DEEPEST:
        head = _byte(file)
        for _ in range(head >> 4 if head >> 4 < 15 else _varint(file)):
            _skip(file, head & 15, depth + 1)
    elif kind in (_I16, _I32, _I64):
        _varint(file)
    elif kind in (_TRUE, _FALSE, _BYTE):  # in a list they take a byte
        _byte(file)
    elif kind in (_DOUBLE, _BINARY):
        file.seek(8 if kind == _DOUBLE else _varint(file), 1)
    else:
        raise OSError("the header of a page is damaged")


def _integer(file: BinaryIO) -> int:
    value = _varint(file)
    return value >> 1 ^ -(value & 1)  # the sign is the last bit


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        part = _byte(file)
        value |= (part & 0x7F) << shift
        if part < 0x80:
            return value
    raise OSError("the header of a page is damaged")


def _byte(file: BinaryIO) -> int:
    if not (byte := file.read(1)):
        raise OSError("the header of a page is cut short")
    return byte[0]
