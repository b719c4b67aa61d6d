"""The files of a GLUE task: in GLUE's folder layout, or on the hub.

Files are TSV, JSON lines or Parquet. GLUE's TSV is not quoted CSV: a tab always separates, a quotation mark is text.
MRPC's files begin with a byte order mark, CoLA's training and dev files have no header. Malformed rows are left out and
counted.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from finetune.glue.tasks import (
    AX,
    INDEX_COLUMNS,
    Example,
    ExampleSet,
    GlueTask,
    TaskData,
    read_example,
    tasks_predicted_with,
)
from foundation.command_line import printable
from foundation.config import ConfigError, counted

HUB_DATASET = "nyu-mll/glue"
AX_FILES = [f"{folder}/{name}" for folder in ("AX", "diagnostic", "MNLI") for name in ("diagnostic-full", "diagnostic")]
"""Where downloads of GLUE leave the diagnostic set; the full file has the labels."""
PROBLEMS_SHOWN = 5
"""Malformed rows shown in full; the rest are counted."""
MALFORMED_AT_MOST = 1e-3
"""Largest share of a source's rows. The official QQP has a few, broken in two by a line feed within a question
(nyu-mll/GLUE-baselines #5); a file of another task, or in another layout, is malformed nearly everywhere."""
Row = Mapping[str, Any]
Source = tuple[str, Iterable[tuple[int, Row | str]]]
"""Name of a file or of a split on the hub; its rows: line (or row) number, and the row by column name, or its
problem."""


def load_task(task: GlueTask, data_dir: str, *, tests: bool = False) -> TaskData:
    """Loads the examples of a task from `data_dir`/<TASK>, or from the hub when `data_dir` is `hub` or `hub:NAME`.

    Raises:
        ConfigError: a folder or file is missing, too many rows are malformed, or the hub cannot be reached.
    """
    left_out: dict[str, int] = {}
    splits = ("train", *task.dev_splits)
    train, *dev = (read(task, _sources(task, data_dir, split), left_out).examples for split in splits)
    wanted = [(of, split, file) for of in tasks_predicted_with(task) for split, file in of.test_files.items()]
    unseen = {
        file: read(of, sources, left_out, labelled=False)
        for of, split, file in (wanted if tests else ())
        if (sources := _sources(of, data_dir, split, labelled=False))
    }
    return TaskData(train, dict(zip(task.dev_splits, dev, strict=True)), unseen, left_out)


def missing_from(task: GlueTask, data_dir: str, split: str = "train") -> str | None:
    """Returns why `data_dir` lacks a split of a task; `None` if it has it. The hub is assumed to have all."""
    folder = Path(data_dir) / task.name
    if _hub_dataset(data_dir) or _find(task, data_dir, split):
        return None
    return f"cannot read {folder / split}.tsv (no such file)" if folder.is_dir() else f"no folder {folder}"


def _sources(task: GlueTask, data_dir: str, split: str, *, labelled: bool = True) -> list[Source]:
    """Opens the files of a split; refuses a missing one if it should be labeled, else returns none."""
    if labelled and (problem := missing_from(task, data_dir, split)):
        raise ConfigError(f"data_dir: {problem}; expected GLUE's {split}.tsv, or .jsonl or .parquet, or --data_dir hub")
    if dataset := _hub_dataset(data_dir):
        return [open_on_hub(task, dataset, split)]
    header = task.header if labelled else None  # a file without labels always has its own
    return [(str(path), read_rows(path, task, header)) for path in _find(task, data_dir, split)]


def _hub_dataset(data_dir: str) -> str | None:
    place, _, name = data_dir.partition(":")
    return (name or HUB_DATASET) if place == "hub" else None


def _find(task: GlueTask, data_dir: str, split: str) -> list[Path]:
    """Returns the files of a split in the first format found: one, or the hub's numbered Parquet files."""
    folder = Path(data_dir) / task.name
    stems = [folder / split, folder / split.replace("dev", "validation")]
    for stem in [Path(data_dir) / file for file in AX_FILES] if task is AX else stems:
        for suffix in (".tsv", ".jsonl", ".parquet"):
            if (path := stem.with_name(stem.name + suffix)).is_file():
                return [path]
        if numbered := sorted(stem.parent.glob(f"{stem.name}-*-of-*.parquet")):
            return numbered
    return []


def read_rows(path: Path, task: GlueTask, header: tuple[str, ...] | None) -> Iterator[tuple[int, Row | str]]:
    """Yields the number of each row of a file, in the format that its suffix names, with the row or its problem.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path) as file:
                yield from enumerate((row for batch in file.iter_batches() for row in batch.to_pylist()), 1)
            return
        # Only a line feed ends a row: sentences may contain the other characters at which Python splits lines.
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
        row = from_json(line)
    except ValueError as error:
        return f"no JSON ({error})"
    return row if isinstance(row, dict) else f"JSON {type(row).__name__}, expected an object"


def open_on_hub(task: GlueTask, dataset: str, split: str) -> Source:
    """Opens a split of a hub dataset laid out as nyu-mll/glue: labels are class numbers in `task.classes`' order.

    Raises:
        ConfigError: there is neither a network nor a cached copy.
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
    return f"{dataset} {configuration} {split}", enumerate(rows, 1)


def read(
    task: GlueTask,
    sources: Iterable[Source],
    left_out: dict[str, int],
    *,
    labelled: bool = True,
) -> ExampleSet:
    """Reads the examples of all sources; unless `labelled`, labels may be missing.

    An example's index is GLUE's, else its place among all rows, malformed ones included.

    Malformed rows are printed, and counted in `left_out`.

    Raises:
        ConfigError: a source cannot be read, has more malformed rows than an official file, or has no examples.
    """
    found: list[tuple[str, Example]] = []
    places = count()
    for name, rows in sources:
        before, problems = len(found), []
        for (number, row), place in zip(rows, places, strict=False):
            try:
                if isinstance(row, str):
                    raise ValueError(row)
                own = next((row[name] for name in INDEX_COLUMNS if name in row), place)
                found.append((str(own), read_example(row, task, labelled=labelled)))
            except ValueError as error:
                problems.append(f"data_dir: {name}, line {number}: {error}")
        _report(name, len(found) - before, problems)
        if problems:
            left_out[name] = len(problems)
    return ExampleSet(task, [identity for identity, _ in found], [example for _, example in found])


def _report(name: str, whole: int, problems: list[str]) -> None:
    """Prints the malformed rows of a source if they are few; otherwise raises a ConfigError that lists them."""
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
        print(
            f"{name}: {counted(len(problems), 'malformed row')} left out:",
            *map(printable, named),
            sep="\n  ",
            flush=True,
        )
