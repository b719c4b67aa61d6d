"""What stands below a report's tables: differences between models, the settings chosen, the runs that collapsed."""

from collections.abc import Iterable, Sequence

from finetune.comparisons import Difference
from finetune.config import GlueConfig, SquadConfig
from finetune.paper_tables import Column
from finetune.results import Cell, Row
from pretrain.markdown_table import markdown_table

SHOWN_SETTINGS = ("learning_rate", "epochs", "weight_decay")
"""What the paper's grid varies; others are shown where the runs vary them."""


def difference_lines(differences: Iterable[Difference]) -> list[str]:
    """A table of the differences, and how to read it."""
    rows = [_difference_row(difference) for difference in differences]
    if not rows:
        return []
    head = ("", "first", "second", "seeds", "second - first", "p over seeds", "95% interval over examples")
    return [
        *markdown_table(head, rows),
        "",
        "In points, the mean over the seeds both were run with, each under its best setting. p: paired permutation "
        "test over seeds, two-sided; with five seeds never below .0625. Interval: paired bootstrap over the dev "
        "examples, the same resamples for both. Neither is corrected for the number of rows, nor for having chosen "
        "the settings.",
    ]


def _difference_row(difference: Difference) -> list[str]:
    p = "–" if difference.p is None else f"{difference.p:.3g}"
    interval = "–" if difference.interval is None else "{:+.1f} to {:+.1f}".format(*difference.interval)
    compared = [difference.column.title, difference.first.label, difference.second.label]
    return [*compared, str(difference.seeds), f"{difference.mean:+.1f}", p, interval]


def setting_lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Each task's best setting for each model; a task's first column stands for it."""
    first_columns: dict[str, Column] = {}
    for column in columns:
        first_columns.setdefault(column.task, column)
    found = [
        (task, row.label, _setting(cell), str(len(cell.tried)))
        for task, column in first_columns.items()
        for row in rows
        if (cell := row.cells.get(column.title))
    ]
    return markdown_table(("task", "model", "setting", "tried"), found) if found else []


def _setting(cell: Cell) -> str:
    varied = [name for name in type(cell.setting).model_fields if len({_value(one, name) for one in cell.tried}) > 1]
    names = dict.fromkeys([*SHOWN_SETTINGS, *varied])
    return ", ".join(f"{name} {_value(cell.setting, name)}" for name in names)


def _value(setting: GlueConfig | SquadConfig, name: str) -> str:
    value = getattr(setting, name)
    return f"{value:g}" if isinstance(value, float) else str(value)


def collapsed_lines(rows: Sequence[Row]) -> list[str]:
    """Every collapsed run, of whatever setting."""
    return [
        f"- {record.run.task}, {row.label}, seed {record.run.seed}, "
        + ", ".join(f"{name} {_value(record.run.settings, name)}" for name in SHOWN_SETTINGS)
        + f": {record.collapsed}"
        for row in rows
        for record in row.collapsed
    ]
