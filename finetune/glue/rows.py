"""Rows of GLUE's files, or of a copy on the Hugging Face hub; malformed ones are left out and counted.

Files are TSV, JSON lines or Parquet. GLUE's TSV is not quoted CSV: a tab always separates, a quotation mark is text.
MRPC's files begin with a byte order mark, CoLA's training and dev files have no header.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from finetune.glue.tasks import INDEX_COLUMNS, Example, ExampleSet, GlueTask, read_example
from foundation.command_line import printable
from foundation.config import ConfigError

PROBLEMS_SHOWN = 5
"""Malformed rows named in full; the rest is counted."""

MALFORMED_AT_MOST = 1e-3
"""Share of a source's rows. The official QQP has a few, which a line feed within a question breaks in two
(nyu-mll/GLUE-baselines #5); a file of another task, or in another layout, is malformed nearly everywhere."""

Row = Mapping[str, Any]


class Source(NamedTuple):
    """A file, or a split on the hub."""

    name: str
    rows: Iterable[tuple[int, Row | str]]
    """Line (or row) number, and the row by column name, or what is wrong with it."""


def open_file(path: Path, task: GlueTask, *, labelled: bool = True) -> Source:
    """The rows of a file in the format that its suffix names; unless `labelled`, it always has a header."""
    return Source(str(path), _rows(path, task, task.header if labelled else None))


def _rows(path: Path, task: GlueTask, header: tuple[str, ...] | None) -> Iterator[tuple[int, Row | str]]:
    """Raises a ConfigError for an unreadable file."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path) as file:
                yield from enumerate((row for batch in file.iter_batches() for row in batch.to_pylist()), 1)
            return
        # Only a line feed ends a row: sentences may hold the other characters that Python splits lines at.
        with path.open(encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                cells = tuple(line.rstrip("\r\n").split("\t"))
                if path.suffix == ".jsonl":
                    yield number, _json_row(line)
                elif header is None:
                    header = cells
                elif len(cells) != len(header):
                    yield number, f"{len(cells)} columns, expected {len(header)} separated by tabs"
                else:
                    yield number, dict(zip(header, cells, strict=True))
    except (OSError, ValueError) as error:  # pyarrow's errors and wrong UTF-8 are these too
        reason = str(error).splitlines()[0]
        raise ConfigError(f"data_dir: cannot read {path} ({reason}); expected GLUE's {task.name} file") from None


def _json_row(line: str) -> Row | str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return f"no JSON ({error.msg})"
    return row if isinstance(row, dict) else f"JSON {type(row).__name__}, expected an object"


def open_on_hub(task: GlueTask, dataset: str, split: str) -> Source:
    """A split of a dataset laid out as nyu-mll/glue, whose labels are class numbers in the order of `task.classes`.

    Raises:
        ConfigError: neither a network nor a cached copy.
    """
    import datasets

    configuration, split = task.name.lower().replace("-", ""), split.replace("dev", "validation")
    try:
        rows = datasets.load_dataset(dataset, configuration, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"data_dir: cannot load {dataset} {configuration} ({reason}); give a folder of TSV files"
        ) from None
    return Source(f"{dataset} {configuration} {split}", enumerate(rows, 1))


def index_of(row: Row, place: int) -> str:
    """GLUE's index of an example or, without one, its place among all rows, malformed ones included."""
    return str(next((row[name] for name in INDEX_COLUMNS if name in row), place))


def read(
    task: GlueTask,
    sources: Iterable[Source],
    left_out: dict[str, int],
    *,
    labelled: bool = True,
    index: Callable[[Row, int], str] = index_of,
) -> ExampleSet:
    """The examples of all sources; unless `labelled`, labels may be missing.

    Malformed rows are printed, and counted in `left_out`.

    Raises:
        ConfigError: an unreadable source, one with more malformed rows than an official file has, or no examples.
    """
    found: list[tuple[str, Example]] = []
    places = count()
    for name, rows in sources:
        before, problems = len(found), []
        for (number, row), place in zip(rows, places, strict=False):
            try:
                if isinstance(row, str):
                    raise ValueError(row)
                found.append((index(row, place), read_example(row, task, labelled=labelled)))
            except ValueError as error:
                problems.append(f"data_dir: {name}, line {number}: {error}")
        _report(name, len(found) - before, problems)
        if problems:
            left_out[name] = len(problems)
    return ExampleSet(task, [identity for identity, _ in found], [example for _, example in found])


def _report(name: str, whole: int, problems: list[str]) -> None:
    """Prints the malformed rows of a source if they are few beside the whole ones, else raises them."""
    left = len(problems) - PROBLEMS_SHOWN
    named = problems[:PROBLEMS_SHOWN] + ([f"data_dir: {name}: {left} more malformed rows"] if left > 0 else [])
    total = whole + len(problems)
    if len(problems) > MALFORMED_AT_MOST * total:
        raise ConfigError(
            *named,
            f"data_dir: {name}: {len(problems)} of {total} rows are malformed, expected at most 1 in"
            f" {1 / MALFORMED_AT_MOST:,.0f}; fix them, or give the task's own file",
        )
    if not whole:
        raise ConfigError(f"data_dir: {name}: no examples")
    if problems and os.environ.get("RANK", "0") == "0":
        print(f"{name}: {len(problems)} malformed rows left out:", *map(printable, named), sep="\n  ", flush=True)
