"""The nine GLUE tasks as rows of one table, read from the official TSV files or from the Hugging Face hub.

The TSV files are not quoted CSV: a tab always separates, a quotation mark is text. MRPC's begin with a byte
order mark, CoLA's have no header.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.config import ConfigError

HUB = "hub"
HUB_DATASET = "nyu-mll/glue"
PROBLEMS_SHOWN = 5
"""Malformed rows one error names in full; it counts the rest."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One row of the table: where the columns are, which labels they hold, which metrics score them."""

    name: str
    text_columns: tuple[str, ...]
    label_column: str = "label"
    classes: tuple[str, ...] = ("0", "1")
    """The files' labels in the order of the hub's class numbers; empty for a regression."""
    max_score: float = 0.0
    """Regression: scores lie in [0, max_score] and are divided by it (as google-research/electra)."""
    metrics: tuple[str, ...] = ("accuracy",)
    """Names in `metrics.METRICS`; the first chooses the best epoch."""
    dev_splits: tuple[str, ...] = ("dev",)
    """File stems; the hub says `validation` where GLUE's files say `dev`."""
    header: tuple[str, ...] | None = None
    """Column names of files that carry none."""
    hub_text_columns: tuple[str, ...] | None = None
    """The hub's names of the text columns where they differ from the files'."""
    unordered: bool = False
    """Pairs whose order says nothing (those that google-research/electra trains on in both orders)."""
    official_examples: int
    """Rows of the official train.tsv, to tell it from another set in the same format."""

    @property
    def num_outputs(self) -> int:
        """Outputs of the task head: one a class, or the score."""
        return len(self.classes) or 1


TASKS = {
    task.name: task
    for task in (
        Task(
            name="CoLA",
            header=("source", "label", "mark", "sentence"),
            text_columns=("sentence",),
            metrics=("matthews",),
            official_examples=8_551,
        ),
        Task(name="SST-2", text_columns=("sentence",), official_examples=67_349),
        Task(
            name="MRPC",
            text_columns=("#1 String", "#2 String"),
            label_column="Quality",
            hub_text_columns=("sentence1", "sentence2"),
            metrics=("accuracy", "f1"),
            unordered=True,
            official_examples=3_668,
        ),
        Task(
            name="STS-B",
            text_columns=("sentence1", "sentence2"),
            label_column="score",
            classes=(),
            max_score=5.0,
            metrics=("spearman", "pearson"),
            unordered=True,
            official_examples=5_749,
        ),
        Task(
            name="QQP",
            text_columns=("question1", "question2"),
            label_column="is_duplicate",
            metrics=("accuracy", "f1"),
            official_examples=363_849,
        ),
        Task(
            name="MNLI",
            text_columns=("sentence1", "sentence2"),
            label_column="gold_label",
            hub_text_columns=("premise", "hypothesis"),
            classes=("entailment", "neutral", "contradiction"),
            dev_splits=("dev_matched", "dev_mismatched"),
            official_examples=392_702,
        ),
        Task(
            name="QNLI",
            text_columns=("question", "sentence"),
            classes=("entailment", "not_entailment"),
            official_examples=104_743,
        ),
        Task(
            name="RTE",
            text_columns=("sentence1", "sentence2"),
            classes=("entailment", "not_entailment"),
            official_examples=2_490,
        ),
        Task(name="WNLI", text_columns=("sentence1", "sentence2"), official_examples=635),
    )
}


class Example(NamedTuple):
    """One or two texts and what to predict: a class number, or a score divided by `Task.max_score`."""

    texts: tuple[str, ...]
    target: float


class TaskData(NamedTuple):
    """The examples of a task; `dev` is keyed by split name, two of them for MNLI."""

    train: list[Example]
    dev: dict[str, list[Example]]

    def fingerprint(self) -> str:
        """SHA-256 over every example: runs with the same one saw the same data, wherever it came from."""
        digest = hashlib.sha256()
        for examples in (self.train, *self.dev.values()):
            for example in examples:
                digest.update(repr(example).encode())
        return digest.hexdigest()


def select_tasks(names: Iterable[str]) -> list[Task]:
    """The tasks named on a command line; `all` stands for every one.

    Raises:
        ConfigError: a name that is no task.
    """
    names = list(dict.fromkeys(names))
    unknown = [name for name in names if name not in TASKS and name != "all"]
    if unknown:
        raise ConfigError(f"task: got {' '.join(unknown)!r}, expected all or one of {', '.join(TASKS)}")
    return list(TASKS.values()) if "all" in names else [TASKS[name] for name in names]


def load_task(task: Task, data_dir: str) -> TaskData:
    """Reads training and dev examples from `data_dir`/<TASK>/*.tsv, or from the hub when `data_dir` is `hub`.

    Raises:
        ConfigError: a missing folder or file, a malformed row, or a hub that cannot be reached.
    """
    if data_dir == HUB:
        return TaskData(read_hub(task, "train"), {split: read_hub(task, split) for split in task.dev_splits})
    folder = Path(data_dir) / task.name
    if not folder.is_dir():
        raise ConfigError(
            f"data_dir: no folder {folder}; expected train.tsv in it, in GLUE's layout, or --data_dir hub"
        )
    train, *dev = (read_tsv(folder / f"{split}.tsv", task) for split in ("train", *task.dev_splits))
    return TaskData(train, dict(zip(task.dev_splits, dev, strict=True)))


def read_tsv(path: Path, task: Task) -> list[Example]:
    """The examples of one file in GLUE's layout.

    Raises:
        ConfigError: an unreadable file, or malformed rows, each named by its line.
    """
    try:
        # Only a line feed ends a row: sentences may hold the other characters Python takes for a line's end.
        with path.open(encoding="utf-8-sig", newline="\n") as lines:
            rows = [line.rstrip("\r\n").split("\t") for line in lines]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data_dir: cannot read {path} ({error}); expected GLUE's {task.name} TSV file") from None
    header = list(task.header or rows[0] if rows else ())
    first_line = 1 if task.header else 2
    examples, problems = [], [] if rows[first_line - 1 :] else [f"data_dir: {path}: no examples"]
    columns = [_column(name, header, path) for name in (*task.text_columns, task.label_column)] if header else []
    for number, row in enumerate(rows[first_line - 1 :], first_line):
        try:
            if len(row) != len(header):
                raise ValueError(f"{len(row)} columns, expected {len(header)} separated by tabs")
            *texts, label = (row[column] for column in columns)
            examples.append(Example(tuple(texts), parse_label(label, task)))
        except ValueError as error:
            problems.append(f"data_dir: {path}, line {number}: {error}")
    if problems:
        raise ConfigError(*problems[:PROBLEMS_SHOWN], *_more(problems, path))
    return examples


def _column(name: str, header: list[str], path: Path) -> int:
    if name not in header:
        raise ConfigError(f"data_dir: {path}, line 1: no column {name!r} among {header}; expected GLUE's header")
    return header.index(name)


def _more(problems: list[str], path: Path) -> list[str]:
    left = len(problems) - PROBLEMS_SHOWN
    return [f"data_dir: {path}: {left} more malformed rows"] if left > 0 else []


def parse_label(label: str, task: Task) -> float:
    """A file's label as `Example.target`.

    Raises:
        ValueError: a label the task does not have.
    """
    if task.classes:
        if label not in task.classes:
            raise ValueError(f"label {label!r}, expected one of {', '.join(task.classes)}")
        return float(task.classes.index(label))
    expected = f"expected a number from 0 to {task.max_score:g}"
    try:
        score = float(label)
    except ValueError:
        raise ValueError(f"score {label!r}, {expected}") from None
    if not 0 <= score <= task.max_score:
        raise ValueError(f"score {label}, {expected}")
    return score / task.max_score


def read_hub(task: Task, split: str) -> list[Example]:
    """The examples of one split of the hub's copy of GLUE.

    Raises:
        ConfigError: neither a network nor a cached copy.
    """
    import datasets

    configuration = task.name.lower().replace("-", "")
    try:
        rows = datasets.load_dataset(HUB_DATASET, configuration, split=split.replace("dev", "validation"))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"data_dir: cannot load {HUB_DATASET} {configuration} ({reason}); give a folder of TSV files"
        ) from None
    return from_hub(rows, task)


def from_hub(rows: Iterable[dict[str, Any]], task: Task) -> list[Example]:
    """Rows of the hub's dataset as examples; its labels are class numbers in the order of `task.classes`."""
    columns = task.hub_text_columns or task.text_columns
    scale = task.max_score or 1.0
    return [Example(tuple(row[column] for column in columns), row["label"] / scale) for row in rows]
