"""Reads tables of documents: Parquet files, and datasets streamed from the Hugging Face hub.

A Parquet reader decompresses a whole page before it knows how large its values are. To bound memory, the size of a page
is read from its header first; no value spans two pages. The header is in Thrift's compact protocol
(https://parquet.apache.org/docs/file-format/, PageHeader).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.formats import LONGEST_RECORD
from data_prep.sources import HUB, Source
from data_prep.unpacking import opened
from foundation.config import ConfigError

_BATCH = 1 << 22  # bytes of text, and of the file, read at a time
_MOST_ROWS = 64  # rows per batch, however short they seem
_LARGEST_PAGE = 1 << 27  # bytes, uncompressed; one value of this size takes 700 MB to read
_REPEATED = 1 << 26  # bytes of a batch whose rows all refer to the longest text of a dictionary
_TEXT = re.compile(r"(?:dictionary<values=)?(?:large_)?(?:string|binary)(?:_view)?(?:,.*)?")
"""Arrow's types of text; pandas' categories are a dictionary's values."""
_UNPACKED, _PACKED = 2, 3  # fields of a page's header: its size uncompressed and in the file
_STOP, _TRUE, _FALSE, _I32, _I64, _BINARY, _STRUCT = 0, 1, 2, 5, 6, 8, 12  # the Thrift types that a page's header uses
_DEEPEST = 8  # nesting of structs; a page's header has two levels


def read_rows(source: Source, start: int, end: int, column: str) -> Iterator[tuple[bytes | None, float]]:
    """Yields, for each row, its text (None if it has none) and the share of the source's rows that it completes.

    The rows are those of the row groups that begin from byte `start` to before byte `end` of a Parquet file, or those
    of the parts numbered so of a dataset on the hub.

    Raises:
        ConfigError: the source cannot be read, or has no text column of that name.
    """
    return _hub_rows(source.path, start, end, column) if source.on_hub else _parquet_rows(source, start, end, column)


def _parquet_rows(source: Source, start: int, end: int, column: str) -> Iterator[tuple[bytes | None, float]]:
    import pyarrow
    from pyarrow import parquet

    path = source.path
    try:
        with opened(path) as raw, parquet.ParquetFile(raw, buffer_size=_BATCH) as file:
            schema = file.schema_arrow
            _check_column(path, column, {field.name: _TEXT.fullmatch(str(field.type)) is not None for field in schema})
            done = 0
            for group in range(file.num_row_groups):
                first = file.metadata.row_group(group).column(0)
                place = first.dictionary_page_offset or first.data_page_offset
                # a damaged place lies in the first or last range, where reading the row group fails
                if (start > 0 and place < start) or (end < source.size and place >= end):
                    continue
                rows = _rows_at_once(path, file.metadata.row_group(group), column)
                for batch in file.iter_batches(rows, [group], [column]):
                    texts = batch.column(0)
                    if isinstance(texts, pyarrow.DictionaryArray):
                        texts = texts.dictionary_decode()
                    for value in texts.cast(pyarrow.large_binary()):
                        done += 1
                        yield _record(path, value.as_py()), done / file.metadata.num_rows
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"input: {path} cannot be read to the end ({reason}); replace the file") from None


def _rows_at_once(path: Path, group: Any, column: str) -> int:
    """Returns how many rows of a row group (`group`, pyarrow's metadata) can be read together in bounded memory.

    Raises:
        ConfigError: a page of the row group is too large.
    """
    chunk = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == column)
    bytes_per_row = group.total_byte_size // max(1, group.num_rows) + 1
    rows = min(_MOST_ROWS, _BATCH // bytes_per_row)
    if chunk.total_uncompressed_size > min(_REPEATED // _MOST_ROWS, _LARGEST_PAGE):  # else no page can be too large
        with opened(path) as raw:
            sizes = list(page_sizes(raw, chunk))
        if (largest := max(sizes)) > _LARGEST_PAGE:
            raise ConfigError(
                f"input: {path} has a Parquet page of {largest >> 20:,} MiB, expected at most {_LARGEST_PAGE >> 20} "
                "MiB: too large for a worker's memory; split long texts, or write the file with smaller pages"
            )
        if chunk.has_dictionary_page:
            rows = min(rows, _REPEATED // sizes[0])
    return max(1, rows)


def page_sizes(file: BinaryIO, chunk: Any) -> Iterator[int]:
    """Yields the uncompressed bytes of each page of a column chunk (pyarrow's metadata), the dictionary first.

    Raises:
        OSError: a header is damaged.
    """
    place = chunk.dictionary_page_offset or chunk.data_page_offset
    end = place + chunk.total_compressed_size
    while place < end:
        file.seek(place)
        header = _struct(file)
        if min(header.get(_UNPACKED, -1), header.get(_PACKED, -1)) < 0:
            raise OSError("the header of a page is damaged")
        yield header[_UNPACKED]
        place = file.tell() + header[_PACKED]


def _struct(file: BinaryIO, depth: int = 0) -> dict[int, int]:
    """Reads a Thrift struct to its end; returns its integers by field number."""
    integers: dict[int, int] = {}
    number = 0
    while (head := _byte(file)) != _STOP:
        number = number + (head >> 4) if head >> 4 else _integer(file)
        kind = head & 15
        if kind in (_I32, _I64):
            integers[number] = _integer(file)
        elif kind == _BINARY:
            file.seek(_varint(file), 1)
        elif kind == _STRUCT and depth < _DEEPEST:
            _struct(file, depth + 1)
        elif kind not in (_TRUE, _FALSE):  # booleans are stored in the head itself
            raise OSError("the header of a page is damaged")
    return integers


def _integer(file: BinaryIO) -> int:
    value = _varint(file)
    return value >> 1 ^ -(value & 1)  # zigzag: the sign is the last bit


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


def _record(path: Path, text: bytes | None) -> bytes | None:
    if text is not None and len(text) > LONGEST_RECORD:
        raise ConfigError(
            f"input: {path} has a text of {len(text) >> 20:,} MiB, expected at most {LONGEST_RECORD >> 20} MiB: too "
            "large for a worker's memory; split or remove it"
        )
    return text


def _check_column(path: Path, column: str, columns: dict[str, bool]) -> None:
    if not columns.get(column):
        texts = ", ".join(name for name, is_text in columns.items() if is_text)
        fix = f"name one of its text columns: {texts}" if texts else "it has no text column at all: replace it"
        raise ConfigError(f"text_column: {path} has no text column named {column}; {fix}")


def hub_name(path: Path) -> tuple[str, str | None, str | None]:
    """Parses `hub:OWNER/NAME[:CONFIGURATION][@REVISION]` into name, configuration and revision."""
    given, _, revision = str(path).removeprefix(HUB).partition("@")
    name, _, configuration = given.partition(":")
    return name, configuration or None, revision or None


def hub_parts(path: Path) -> int:
    """Returns the number of parts, usually files, that a hub dataset's train split can be read in.

    Raises:
        ConfigError: the dataset cannot be reached.
    """
    with _hub_errors(path):
        return int(_hub_dataset(path).num_shards)


def _hub_dataset(path: Path) -> Any:
    import datasets

    name, configuration, revision = hub_name(path)
    datasets.disable_progress_bars()
    return datasets.load_dataset(name, configuration, revision=revision, split="train", streaming=True)


def _hub_rows(path: Path, start: int, end: int, column: str) -> Iterator[tuple[bytes | None, float]]:
    """Yields the rows of parts of a hub dataset's train split, as `read_rows` does."""
    with _hub_errors(path):
        rows = _hub_dataset(path)
        columns = {key: "string" in str(kind) for key, kind in (rows.features or {column: "string"}).items()}
        _check_column(path, column, columns)
        for part in range(start, end):
            for row in rows.select_columns([column]).shard(rows.num_shards, part):
                text = row[column]
                yield _record(path, None if text is None else text.encode("utf-8", "surrogatepass")), 0.0


@contextmanager
def _hub_errors(path: Path) -> Iterator[None]:
    """Raises errors of streaming from the hub as a ConfigError that names the dataset."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # the network, the hub and each file format raise their own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"input: {path} cannot be streamed from the hub ({reason}); check the name and the network, or download "
            "the files and give their folder"
        ) from None
