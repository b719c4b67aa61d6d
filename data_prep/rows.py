"""Reads tables of documents: Parquet files, and datasets streamed from the Hugging Face hub.

A Parquet reader decompresses a whole page, and a row group may be one page. So the size of a group bounds memory.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.formats import LONGEST_RECORD, PARQUET
from data_prep.sources import HUB, Source
from data_prep.unpacking import opened
from foundation.config import ConfigError

_BATCH = 1 << 22  # bytes of text, and of the file, read at a time
_ROWS = 64  # per batch
_LARGEST_GROUP = 1 << 27  # bytes of text, uncompressed
_TEXT = re.compile(r"(?:dictionary<values=)?(?:large_)?(?:string|binary)(?:_view)?(?:,.*)?")
"""Arrow's types of text; pandas' categories are a dictionary's values."""


def read_rows(source: Source, start: int, end: int | None, column: str) -> Iterator[bytes | None]:
    """Yields each row's text (None if missing) from row groups of a Parquet file or parts of a hub dataset.

    Raises:
        ConfigError: the source cannot be read, or has no text column of that name.
    """
    read = _hub_rows if source.on_hub else _parquet_rows
    return read(source.path, start, end, column)


def is_table(path: Path) -> bool:
    """True for a Parquet file."""
    with opened(path) as file:
        return file.read(len(PARQUET)) == PARQUET


def group_sizes(path: Path) -> list[int]:
    """Returns the bytes of each row group of a Parquet file, uncompressed, from its footer.

    Raises:
        ConfigError: the file is damaged.
    """
    with _parquet(path) as file:
        return [file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)]


@contextmanager
def _parquet(path: Path, column: str | None = None) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        # a column with few values repeats them: read as a dictionary, each is in memory once
        columns = [column] if column else None
        with opened(path) as raw, parquet.ParquetFile(raw, buffer_size=_BATCH, read_dictionary=columns) as file:
            yield file
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"input: {path} cannot be read to the end ({reason}); replace the file") from None


def _parquet_rows(path: Path, start: int, end: int | None, column: str) -> Iterator[bytes | None]:
    with _parquet(path) as file:
        columns = {field.name: _TEXT.fullmatch(str(field.type)) is not None for field in file.schema_arrow}
        _check_column(path, column, columns)
    with _parquet(path, column) as file:
        for group in range(file.num_row_groups)[start:end]:
            _require_small(path, file.metadata.row_group(group), column)
            for batch in file.iter_batches(_ROWS, [group], [column]):
                for value in batch.column(0):
                    text = value.as_py()
                    yield _record(path, text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)


def _require_small(path: Path, group: Any, column: str) -> None:
    """Refuses a row group whose pages may be too large for memory: a page is decompressed as a whole.

    Raises:
        ConfigError: the text of the group is too large.
    """
    chunks = map(group.column, range(group.num_columns))
    size = next(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
    if size > _LARGEST_GROUP:
        raise ConfigError(
            f"input: {path} has a row group with {size >> 20:,} MiB of text, expected at most {_LARGEST_GROUP >> 20}: "
            "too large for a worker's memory; write the file with smaller row groups (row_group_size)"
        )


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


def _hub_rows(path: Path, start: int, end: int | None, column: str) -> Iterator[bytes | None]:
    """Yields the rows of parts of a hub dataset's train split, as `read_rows` does."""
    with _hub_errors(path):
        rows = _hub_dataset(path)
        columns = {key: "string" in str(kind) for key, kind in (rows.features or {column: "string"}).items()}
        _check_column(path, column, columns)
        for part in range(start, end or int(rows.num_shards)):
            for row in rows.select_columns([column]).shard(rows.num_shards, part):
                text = row[column]
                yield _record(path, None if text is None else text.encode("utf-8", "surrogatepass"))


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
