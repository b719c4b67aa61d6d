"""The files of a GLUE task: in GLUE's folder layout, or on the hub.

GLUE's TSV is not quoted CSV: a tab always separates, a quotation mark is text. MRPC's files begin with a byte order
mark, CoLA's training and dev files have no header.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from electra_sampler.foundation.command_line import printable
from electra_sampler.foundation.config import ConfigError, counted, errors_of_hub, explained, few
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

HUB_DATASET = "nyu-mll/glue"
AX_FILES = [f"{folder}/{name}" for folder in ("AX", "diagnostic", "MNLI") for name in ("diagnostic-full", "diagnostic")]
"""Possible places of the diagnostic set in a download of GLUE; the full file has the labels."""
MALFORMED_AT_MOST = 1e-3
"""Largest share of malformed rows. The official QQP has a few, broken in two by a line feed within a question
(nyu-mll/GLUE-baselines #5); a file of another task, or in another layout, is malformed nearly everywhere."""
Row = Mapping[str, Any]
Source = tuple[str, Iterable[tuple[int, Row | str]]]
"""Name of a file or of a split on the hub, and its rows: line number, and the row by column name or what is wrong."""


def load_task(task: GlueTask, data_dir: str, *, tests: bool = False) -> TaskData:
    """Loads the examples of a task from `data_dir`/<TASK>, or from the hub when `data_dir` is `hub` or `hub:NAME`.

    Raises:
        ConfigError: a folder or file is missing, too many rows are malformed, or the hub cannot be reached.
    """
    train, *dev = (read(task, open_split(task, data_dir, split)).examples for split in ("train", *task.dev_splits))
    unseen = {
        file: read(of, open_split(of, data_dir, split, labeled=False), labeled=False)
        for of in (tasks_predicted_with(task) if tests else ())
        for split, file in of.test_files.items()
        if of is task or not missing_from(of, data_dir, split)  # the diagnostic set is no part of a task's folder
    }
    return TaskData(train, dict(zip(task.dev_splits, dev, strict=True)), unseen)


def missing_from(task: GlueTask, data_dir: str, split: str = "train") -> str | None:
    """Returns why `data_dir` lacks a split of a task; `None` if it has the split. The hub is assumed to have all."""
    folder = Path(data_dir) / task.name
    if _hub_dataset(data_dir) or any(map(Path.is_file, _paths(task, data_dir, split))):
        return None
    return f"cannot read {folder / split}.tsv (no such file)" if folder.is_dir() else f"no folder {folder}"


def open_split(task: GlueTask, data_dir: str, split: str, *, labeled: bool = True) -> Source:
    """Opens a split's file, or a split on the hub.

    Raises:
        ConfigError: the file is missing, or the hub cannot be reached and no copy is cached.
    """
    if dataset := _hub_dataset(data_dir):
        return open_on_hub(task, dataset, split)
    if problem := missing_from(task, data_dir, split):
        raise ConfigError(f"data_dir: {problem}; expected GLUE's {split}.tsv, or --data_dir hub")
    path = next(filter(Path.is_file, _paths(task, data_dir, split)))
    return str(path), read_rows(path, task, task.header if labeled else None)  # without labels, it has its own header


def _hub_dataset(data_dir: str) -> str | None:
    place, _, name = data_dir.partition(":")
    return (name or HUB_DATASET) if place == "hub" else None


def _paths(task: GlueTask, data_dir: str, split: str) -> list[Path]:
    """Returns the possible paths of a split's file."""
    return [Path(data_dir) / f"{name}.tsv" for name in (AX_FILES if task is AX else [f"{task.name}/{split}"])]


def read_rows(path: Path, task: GlueTask, header: tuple[str, ...] | None) -> Iterator[tuple[int, Row | str]]:
    """Yields each row of a TSV file, or what is wrong with it, and its line number; if `header` is None, line 1 is it.

    Raises:
        ConfigError: the file cannot be read.
    """
    with (
        explained(f"data_dir: cannot read {path}", f"expected GLUE's {task.name} file", (OSError, UnicodeDecodeError)),
        # Only a line feed ends a row: sentences may contain the other characters at which Python splits lines.
        path.open(encoding="utf-8-sig", newline="\n") as lines,
    ):
        for number, line in enumerate(lines, 1):
            cells = tuple(line.rstrip("\r\n").split("\t"))
            if header is None:
                header = cells
            elif len(cells) != len(header):
                yield number, f"{len(cells)} columns, expected {len(header)} separated by tabs"
            else:
                yield number, dict(zip(header, cells, strict=True))


def open_on_hub(task: GlueTask, dataset: str, split: str) -> Source:
    """Opens a split of a hub dataset laid out as nyu-mll/glue: labels are class numbers in `task.classes`' order.

    Raises:
        ConfigError: the hub cannot be reached and no copy is cached.
    """
    import datasets

    configuration, split = task.name.lower().replace("-", ""), split.replace("dev", "validation")
    # the last: of a dataset that is a script
    kinds = (*errors_of_hub(), datasets.exceptions.DatasetsError, RuntimeError)
    with explained(f"data_dir: cannot load {dataset} {configuration}", "give a folder of TSV files", kinds):
        rows = datasets.load_dataset(dataset, configuration, split=split)
    return f"{dataset} {configuration} {split}", enumerate(rows, 1)


def read(task: GlueTask, source: Source, *, labeled: bool = True) -> ExampleSet:
    """Reads the examples of a source; unless `labeled`, labels may be missing.

    An example's index is GLUE's, or else its row number from 0. A few malformed rows are printed and skipped.

    Raises:
        ConfigError: the source cannot be read, has more malformed rows than an official file, or has no examples.
    """
    name, rows = source
    found: list[tuple[str, Example]] = []
    problems = []
    for place, (number, row) in enumerate(rows):
        try:
            if isinstance(row, str):
                raise ValueError(row)
            own = next((row[column] for column in INDEX_COLUMNS if column in row), place)
            found.append((str(own), read_example(row, task, labeled=labeled)))
        except ValueError as error:
            problems.append(f"data_dir: {name}, line {number}: {error}")
    _report(name, len(found), problems)
    return ExampleSet(task, [index for index, _ in found], [example for _, example in found])


def _report(name: str, whole: int, problems: list[str]) -> None:
    """Prints the malformed rows of a source if they are few; otherwise raises a ConfigError that lists them."""
    named = few(problems, f"malformed rows in {name}")
    total = whole + len(problems)
    if len(problems) > MALFORMED_AT_MOST * total:
        raise ConfigError(
            *named,
            f"data_dir: {name}: {len(problems)} of {total} rows are malformed, expected at most 1 in"
            f" {1 / MALFORMED_AT_MOST:,.0f}; fix them, or give the task's official file",
        )
    if not whole:
        raise ConfigError(f"data_dir: {name}: no examples; give the task's official file")
    if problems and os.environ.get("RANK", "0") == "0":
        print(
            f"{name}: {counted(len(problems), 'malformed row')} left out:",
            *map(printable, named),
            sep="\n  ",
            flush=True,
        )
