"""The report's columns, each a dev split and metric of a task, with the paper's results.

Source: "Learning to Sample Replacements for ELECTRA Pre-Training" (Findings of ACL 2021), its results of small and of
base models: dev sets, medians over five seeds, percent.
"""

from typing import NamedTuple

from finetune.glue.tasks import AX, TASKS, tasks_predicted_with
from finetune.presets import ModelSize
from finetune.tagging import files as tagging


class Column(NamedTuple):
    """One column of a report: a metric on a dev split of a task."""

    title: str
    task: str
    split: str
    metric: str
    paper_index: int | None = None
    """Index into the paper's rows; `None` if the paper does not report it."""


_Row = tuple[float | None, ...]


class Table(NamedTuple):
    """Columns that belong together, and the paper's rows of results in them."""

    title: str
    columns: tuple[Column, ...]
    paper_rows: dict[ModelSize, dict[str, _Row]]
    whole: bool = False
    """Whether to show only models that have a score in every column."""
    averaged: tuple[Column, ...] = ()
    """The columns of the average, for rows that have all of them."""


PAPER_GLUE = ("MNLI-m", "MNLI-mm", "QNLI", "QQP", "RTE", "SST-2", "MRPC", "CoLA", "STS-B")
"""The paper's columns, named as GLUE's submission files."""
_PLACES = {title: place for place, title in enumerate(PAPER_GLUE)}
_TITLES = {task: [file.removesuffix(".tsv") for file in task.test_files.values()] for task in (*TASKS.values(), AX)}

GLUE_COLUMNS = tuple(
    Column(
        title if metric in ("accuracy", "matthews") else f"{title} {metric.capitalize()}",
        task.name,
        split,
        metric,
        # STS-B: the paper's table says Pearson, its text Spearman; its number is shown under both.
        None if metric == "f1" else _PLACES.get(title),
    )
    for task in sorted(TASKS.values(), key=lambda task: _PLACES.get(_TITLES[task][0], len(_PLACES)))
    for of in tasks_predicted_with(task)
    for split, title in zip(of.dev_splits, _TITLES[of], strict=True)
    for metric in of.metrics
)
"""A column per dev split and metric of every GLUE task, the paper's columns first; MNLI also brings AX."""
AVERAGED = tuple(
    column
    for column in GLUE_COLUMNS
    if column.paper_index is not None and column.title != "MNLI-mm" and column.metric != "spearman"
)
"""The eight columns of the averages that the paper's introduction compares."""

GLUE_ROWS: dict[ModelSize, dict[str, _Row]] = {
    "small": {
        "ELECTRA (reimplementation)": (80.3, 80.6, 89.0, 89.2, 62.2, 89.0, 87.3, 59.6, 86.3),
        "HP_Loss + Focal": (81.2, 81.7, 89.1, 89.6, 66.1, 89.2, 86.6, 59.3, 86.7),
        "HP_Dist + Focal": (81.0, 81.8, 89.3, 89.6, 62.5, 89.2, 86.8, 59.7, 86.8),
    },
    "base": {
        "BERT": (84.5, None, 88.6, 90.8, 68.5, 92.8, 86.0, 58.4, 87.8),
        "RoBERTa": (84.7, None, None, None, None, 92.7, None, None, None),
        "XLNet": (85.8, None, None, None, None, 93.4, None, None, None),
        "ELECTRA": (86.2, None, 92.4, 90.9, 76.3, 92.4, 87.9, 65.8, 89.1),
        "Electric": (85.7, None, 92.1, 90.6, 73.4, 91.9, 88.0, 61.8, 89.4),
        "ELECTRA (reimplementation)": (86.7, 86.5, 92.6, 91.4, 80.4, 92.6, 89.1, 66.5, 91.0),
        "HP_Loss + Focal": (87.0, 86.9, 92.7, 91.7, 81.3, 92.6, 90.7, 66.7, 91.0),
        "HP_Dist + Focal": (86.8, 86.8, 92.3, 91.6, 80.0, 92.7, 89.8, 67.3, 90.9),
    },
}

# The paper does not say which threshold it scored SQuAD 2.0 at; its numbers are shown under both.
SQUAD_COLUMNS = (
    Column("SQuAD 2.0 EM", "SQuAD 2.0", "dev", "exact", 0),
    Column("SQuAD 2.0 F1", "SQuAD 2.0", "dev", "f1", 1),
    Column("EM, best threshold", "SQuAD 2.0", "dev", "best_exact", 0),
    Column("F1, best threshold", "SQuAD 2.0", "dev", "best_f1", 1),
    Column("HasAns EM", "SQuAD 2.0", "dev", "HasAns_exact"),
    Column("HasAns F1", "SQuAD 2.0", "dev", "HasAns_f1"),
    Column("NoAns", "SQuAD 2.0", "dev", "NoAns_f1"),
    Column("SQuAD 1.1 EM", "SQuAD 1.1", "dev", "exact"),
    Column("SQuAD 1.1 F1", "SQuAD 1.1", "dev", "f1"),
)

SQUAD_ROWS: dict[ModelSize, dict[str, _Row]] = {
    "small": {
        "ELECTRA (reimplementation)": (68.9, 71.3),
        "HP_Loss + Focal": (71.8, 74.3),
        "HP_Dist + Focal": (73.2, 75.5),
    },
    "base": {
        "BERT": (73.7, 77.1),
        "RoBERTa": (None, 79.7),
        "XLNet": (78.2, 81.0),
        "ELECTRA": (80.5, 83.3),
        "Electric": (80.1, None),
        "ELECTRA (reimplementation)": (82.4, 85.1),
        "HP_Loss + Focal": (83.0, 85.6),
        "HP_Dist + Focal": (82.7, 85.4),
    },
}

TAGGING_COLUMNS = tuple(
    Column(f"{task.name} {metric if metric == 'accuracy' else metric.capitalize()}{where}", task.name, split, metric)
    for task in tagging.TASKS.values()
    for split, where in (("dev", ""), ("test", ", test"))
    for metric in task.metrics
)
"""A column per metric of every tagging task: on the dev file, then on the test file."""

ABLATION_COLUMNS = (
    Column("MNLI-m", "MNLI", "dev_matched", "accuracy", 0),
    Column("SQuAD 2.0 F1", "SQuAD 2.0", "dev", "f1", 1),
)

ABLATION_ROWS: dict[ModelSize, dict[str, _Row]] = {
    "small": {
        "ELECTRA": (80.3, 71.3),
        "HP_Loss, lambda1=5": (80.9, 74.2),
        "HP_Loss, lambda1=10": (81.1, 75.1),
        "HP_Loss, lambda1=20": (81.0, 74.1),
        "HP_Loss, lambda1=5, focal piecewise (3 if p>0.2 else 5)": (81.0, 74.7),
        "HP_Loss, lambda1=5, focal gamma=1": (81.2, 74.3),
        "HP_Loss, lambda1=5, focal gamma=4": (80.9, 74.2),
    }
}

TABLES = (
    Table("GLUE", GLUE_COLUMNS, GLUE_ROWS, averaged=AVERAGED),
    Table("SQuAD", SQUAD_COLUMNS, SQUAD_ROWS),
    Table("Token classification", TAGGING_COLUMNS, {}),
    Table("Ablation", ABLATION_COLUMNS, ABLATION_ROWS, whole=True),
)
COLUMNS = GLUE_COLUMNS + SQUAD_COLUMNS + TAGGING_COLUMNS
