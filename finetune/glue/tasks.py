"""The nine GLUE tasks and the diagnostic set AX as one table; the rows of their files as examples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from electra_sampler.foundation.config import one_of, refuse
from finetune.running.records import Task, answers_folder, sha256_of

HUB_UNLABELED = -1
"""The hub's label for unlabeled examples."""
INDEX_COLUMNS = ("index", "idx", "id")
"""Column names of an example's index: in GLUE's TSV files, on the hub, in GLUE's QQP."""


@dataclass(frozen=True, kw_only=True)
class GlueTask(Task):
    """One GLUE task: its columns, labels and metrics."""

    text_columns: tuple[str, ...]
    label_column: str = "label"
    classes: tuple[str, ...] = ("0", "1")
    """The files' labels in the order of the hub's class numbers; empty for a regression."""
    labels: tuple[str, ...] = ()
    """The classes' names on the hub, in the same order, if the files have only numbers."""
    max_score: float = 0.0
    """Regression: scores lie in [0, max_score] and are divided by it (as google-research/electra)."""
    submissions: tuple[tuple[str, str], ...] = ()
    """Pairs of a test split and the file name of its submission; empty means test and TASK.tsv."""
    header: tuple[str, ...] | None = None
    """Column names, if training and dev files have no header line."""
    hub_text_columns: tuple[str, ...] | None = None
    """Names of the text columns on the hub, if they differ from the files'."""

    @property
    def test_files(self) -> dict[str, str]:
        """Returns the file name of the submission for each test split."""
        return dict(self.submissions or (("test", f"{self.name}.tsv"),))


TASKS = {
    task.name: task
    for task in (
        GlueTask(
            name="CoLA",
            labels=("unacceptable", "acceptable"),
            header=("source", "label", "mark", "sentence"),
            text_columns=("sentence",),
            metrics=("matthews",),
            official_examples=8_551,
        ),
        GlueTask(name="SST-2", text_columns=("sentence",), labels=("negative", "positive"), official_examples=67_349),
        GlueTask(
            name="MRPC",
            labels=("not_equivalent", "equivalent"),
            text_columns=("#1 String", "#2 String"),
            label_column="Quality",
            hub_text_columns=("sentence1", "sentence2"),
            metrics=("accuracy", "f1"),
            official_examples=3_668,
        ),
        GlueTask(
            name="STS-B",
            text_columns=("sentence1", "sentence2"),
            label_column="score",
            classes=(),
            max_score=5.0,
            metrics=("spearman", "pearson"),
            official_examples=5_749,
        ),
        GlueTask(
            name="QQP",
            labels=("not_duplicate", "duplicate"),
            text_columns=("question1", "question2"),
            label_column="is_duplicate",
            metrics=("accuracy", "f1"),
            official_examples=363_849,
        ),
        GlueTask(
            name="MNLI",
            text_columns=("sentence1", "sentence2"),
            label_column="gold_label",
            hub_text_columns=("premise", "hypothesis"),
            classes=("entailment", "neutral", "contradiction"),
            dev_splits=("dev_matched", "dev_mismatched"),
            submissions=(("test_matched", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv")),
            official_examples=392_702,
        ),
        GlueTask(
            name="QNLI",
            text_columns=("question", "sentence"),
            classes=("entailment", "not_entailment"),
            official_examples=104_743,
        ),
        GlueTask(
            name="RTE",
            text_columns=("sentence1", "sentence2"),
            classes=("entailment", "not_entailment"),
            official_examples=2_490,
        ),
        GlueTask(
            name="WNLI",
            text_columns=("sentence1", "sentence2"),
            labels=("not_entailment", "entailment"),
            official_examples=635,
        ),
    )
}

AX = GlueTask(
    name="AX",
    text_columns=("sentence1", "sentence2"),
    hub_text_columns=("premise", "hypothesis"),
    classes=TASKS["MNLI"].classes,
    metrics=("matthews",),
    dev_splits=("AX",),
    official_examples=0,
)
"""The diagnostic set, predicted by the model of MNLI; only `diagnostic-full.tsv` has labels."""


class Example(NamedTuple):
    """One or two texts and the target: a class number, a score divided by `max_score`, or NaN without a label."""

    texts: tuple[str, ...]
    target: float


class ExampleSet(NamedTuple):
    """Examples in order, and GLUE's index of each."""

    task: GlueTask
    """The task of the examples; for the diagnostic set AX, not MNLI."""
    indices: list[str]
    examples: list[Example]


class TaskData(NamedTuple):
    """The examples of a task; `dev` is keyed by split name, two of them for MNLI."""

    train: list[Example]
    dev: dict[str, list[Example]]
    tests: dict[str, ExampleSet] = {}
    """Test sets by submission file; most have no labels."""

    def fingerprint(self) -> str:
        """Returns the SHA-256 over all training and dev examples; the same from files and from the hub."""
        return sha256_of(chain(self.train, *self.dev.values()))

    def tests_by_path(self) -> dict[str, ExampleSet]:
        """Returns the test sets, keyed by the path of their predictions in a run's folder."""
        folder = answers_folder((file, tests.indices, tests.examples) for file, tests in self.tests.items())
        return {f"{folder}/{file}": tests for file, tests in self.tests.items()}


def tasks_predicted_with(task: GlueTask) -> tuple[GlueTask, ...]:
    """Returns the tasks whose test sets a model of `task` predicts: itself and, for MNLI, the diagnostic set."""
    return (task, AX) if task.name == "MNLI" else (task,)


def select_tasks(names: Sequence[str]) -> list[GlueTask]:
    """Returns the tasks with these names, upper or lower case; `all` means every task.

    Raises:
        ConfigError: a name is unknown.
    """
    known = {name.lower(): task for name, task in TASKS.items()}
    unknown = (name for name in names if name.lower() not in {*known, "all"})
    refuse(f"task: got {name!r}, {one_of(name, ('all', *TASKS))}" for name in unknown)
    chosen = dict.fromkeys(name.lower() for name in names)
    return list(TASKS.values()) if "all" in chosen else [known[name] for name in chosen]


def read_example(row: Mapping[str, Any], task: GlueTask, *, labeled: bool = True) -> Example:
    """Converts a row, keyed by column name, to an example; unless `labeled`, the label may be missing.

    Raises:
        ValueError: the row lacks a column, or a text or label is malformed.
    """
    names = _columns(task, tuple(row), labeled)
    texts = tuple(row[name] for name in names[: len(task.text_columns)])
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"text {text!r}, expected a string")
    label = row[names[-1]] if len(names) > len(texts) else HUB_UNLABELED
    return Example(texts, math.nan if label == HUB_UNLABELED and not labeled else parse_label(label, task))


@lru_cache
def _columns(task: GlueTask, names: tuple[str, ...], labeled: bool) -> list[str]:
    """Returns the names of the text columns and, if present, of the label column, as `names` spells them."""
    known = {name.lower(): name for name in names}
    official = (*task.text_columns, task.label_column)
    hub = (*(task.hub_text_columns or task.text_columns), "label")
    for wanted in (official, hub) if labeled else (official, hub, official[:-1], hub[:-1]):
        if all(name.lower() in known for name in wanted):
            return [known[name.lower()] for name in wanted]
    missing = next(name for name in official if name.lower() not in known)
    raise ValueError(f"no column {missing!r} among {', '.join(map(repr, names))}")


def parse_label(label: Any, task: GlueTask) -> float:
    """Converts a label to `Example.target`: its class number, or its score divided by the task's highest.

    A class is given by its name in the files or by its number on the hub.

    Raises:
        ValueError: the task has no such class, or the score is out of range.
    """
    if type(label) is int and 0 <= label < len(task.classes):
        return float(label)
    if task.classes:
        if label not in task.classes:
            raise ValueError(f"label {label!r}, expected one of {', '.join(task.classes)}")
        return float(task.classes.index(label))
    try:
        score = float(label)
    except (TypeError, ValueError):
        score = math.nan
    if not 0 <= score <= task.max_score:  # nor is NaN
        raise ValueError(f"score {label!r}, expected a number from 0 to {task.max_score:g}")
    return score / task.max_score
