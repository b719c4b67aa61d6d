"""The nine GLUE tasks and the diagnostic set AX as rows of one table; `files.py` reads their files."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from finetune.tokens.examples import Example, answers_folder, sha256_of
from foundation.config import ConfigError

UNLABELLED = math.nan
"""Target of an example whose label is not given."""
HUB_UNLABELLED = -1
"""The label that the hub's copy gives such examples."""
INDEX_COLUMNS = ("index", "idx", "id")
"""Names of an example's number: in GLUE's TSV files, on the hub, in GLUE's QQP."""


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
    submissions: tuple[tuple[str, str], ...] = ()
    """Test splits by file stem, and the file of GLUE's submission format each goes into; TASK.tsv unless named."""
    header: tuple[str, ...] | None = None
    """Column names of training and dev files that carry none."""
    hub_text_columns: tuple[str, ...] | None = None
    """The hub's names of the text columns where they differ from the files'."""
    unordered: bool = False
    """Pairs whose order says nothing (those that google-research/electra trains on in both orders)."""
    official_examples: int
    """Rows of the official train.tsv, to tell it from another set in the same format."""

    @property
    def test_files(self) -> dict[str, str]:
        """Test split -> file of a submission."""
        return dict(self.submissions or (("test", f"{self.name}.tsv"),))

    def columns(self, names: Collection[str], labelled: bool) -> list[str]:
        """Which of a file's columns hold the texts and, where `labelled`, the label: GLUE's names or the hub's.

        Raises:
            ValueError: a column is missing.
        """
        known = {name.lower(): name for name in names}
        official = (*self.text_columns, *([self.label_column] if labelled else ()))
        hub = (*(self.hub_text_columns or self.text_columns), *(["label"] if labelled else ()))
        for wanted in (official, hub):
            if all(name.lower() in known for name in wanted):
                return [known[name.lower()] for name in wanted]
        missing = next(name for name in official if name.lower() not in known)
        raise ValueError(f"no column {missing!r} among {', '.join(map(repr, names))}")


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
            submissions=(("test_matched", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv")),
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

AX = Task(
    name="AX",
    text_columns=("sentence1", "sentence2"),
    hub_text_columns=("premise", "hypothesis"),
    classes=TASKS["MNLI"].classes,
    metrics=("matthews",),
    official_examples=0,
)
"""The diagnostic set, predicted by the model of MNLI; only `diagnostic-full.tsv` has labels."""


class UnseenSet(NamedTuple):
    """Examples to predict, most without labels, and GLUE's index of each."""

    task: Task
    """The row of the table it is read and scored by: AX for the diagnostic set."""
    indices: list[str]
    examples: list[Example]


class TaskData(NamedTuple):
    """The examples of a task; `dev` is keyed by split name, two of them for MNLI."""

    train: list[Example]
    dev: dict[str, list[Example]]
    tests: dict[str, UnseenSet] = {}
    """By the file that its predictions go into."""
    left_out: dict[str, int] = {}
    """Malformed rows that are not among the examples, by source."""

    def fingerprint(self) -> str:
        """SHA-256 over every training and dev example: runs with the same one saw the same data, from anywhere."""
        return sha256_of(chain(self.train, *self.dev.values()))

    def tests_by_path(self) -> dict[str, UnseenSet]:
        """The test sets by where, in a run's folder, their predictions go."""
        folder = answers_folder((file, tests.indices, tests.examples) for file, tests in self.tests.items())
        return {f"{folder}/{file}": tests for file, tests in self.tests.items()}


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


def parse_label(label: Any, task: Task) -> float:
    """A label as `Example.target`: a file's word for it, or the hub's class number.

    Raises:
        ValueError: a label the task does not have.
    """
    if task.classes:
        if isinstance(label, int) and 0 <= label < len(task.classes):
            return float(label)
        if label not in task.classes:
            raise ValueError(f"label {label!r}, expected one of {', '.join(task.classes)}")
        return float(task.classes.index(label))
    expected = f"expected a number from 0 to {task.max_score:g}"
    try:
        score = float(label)
    except (TypeError, ValueError):
        raise ValueError(f"score {label!r}, {expected}") from None
    if not 0 <= score <= task.max_score:
        raise ValueError(f"score {label}, {expected}")
    return score / task.max_score


def labelled_example(row: Mapping[str, Any], task: Task) -> Example:
    """A row, by column name, as an example.

    Raises:
        ValueError: what is wrong with the row.
    """
    *texts, label = _values(row, task, labelled=True)
    return Example(tuple(texts), parse_label(label, task))


def unseen_example(row: Mapping[str, Any], task: Task, place: int) -> tuple[str, Example]:
    """GLUE's index of a test example, `place` where it has none, and the example, which keeps a label it has.

    Raises:
        ValueError: what is wrong with the row.
    """
    index = next((row[name] for name in INDEX_COLUMNS if name in row), place)
    try:
        *texts, label = _values(row, task, labelled=True)
    except ValueError:
        texts, label = _values(row, task, labelled=False), HUB_UNLABELLED
    target = UNLABELLED if label == HUB_UNLABELLED else parse_label(label, task)
    return str(index), Example(tuple(texts), target)


def _values(row: Mapping[str, Any], task: Task, *, labelled: bool) -> list[Any]:
    """The texts of a row and, where `labelled`, its label."""
    values = [row[name] for name in _columns(task, tuple(row), labelled)]
    for text in values[: len(task.text_columns)]:
        if not isinstance(text, str):
            raise ValueError(f"text {text!r}, expected a string")
    return values


@lru_cache
def _columns(task: Task, names: tuple[str, ...], labelled: bool) -> list[str]:
    return task.columns(names, labelled)
