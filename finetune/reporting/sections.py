"""What stands below a report's tables: differences between models, the settings chosen, the runs that collapsed."""

from collections.abc import Iterable, Sequence

from finetune.config import GlueConfig, SquadConfig
from finetune.reporting.comparisons import Difference
from finetune.reporting.paper_tables import Column
from finetune.reporting.results import Row
from foundation.markdown_table import markdown_table

SHOWN_SETTINGS = ("learning_rate", "epochs", "weight_decay")
"""What the paper's grid varies; others are shown where the runs vary them."""


def difference_lines(differences: Iterable[Difference]) -> list[str]:
    """A table of the differences, a row a pair of models and a column a score, and how to read it."""
    by_pair: dict[str, dict[str, str]] = {}
    for found in differences:
        interval = () if found.interval is None else ("{:+.1f} to {:+.1f}".format(*found.interval),)
        p = () if found.p is None else (f"p {found.p:.3g}",)
        cells = by_pair.setdefault(f"{found.second.label} - {found.first.label}", {})
        cells[found.column.title] = f"{found.mean:+.1f} ({'; '.join((*interval, *p, str(found.seeds)))})"
    if not by_pair:
        return []
    titles = list(dict.fromkeys(title for cells in by_pair.values() for title in cells))
    rows = [[pair, *(cells.get(title, "–") for title in titles)] for pair, cells in by_pair.items()]
    return [
        *markdown_table(["difference", *titles], rows),
        "",
        "In points: the mean over the seeds both were run with, each under its best setting (95% interval of the "
        "paired bootstrap over the dev examples, the same resamples for both; p of the two-sided paired permutation "
        "test over seeds, with five of them never below .0625; number of seeds). Neither is corrected for the number "
        "of differences, nor for having chosen the settings.",
    ]


def setting_lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Each task's best setting for each model, or for all at once; a task's first column stands for it."""
    first_columns: dict[str, Column] = {}
    for column in columns:
        first_columns.setdefault(column.task, column)
    found = []
    for task, column in first_columns.items():
        models: dict[tuple[str, int], list[str]] = {}
        for row in rows:
            if cell := row.cells.get(column.title):
                fields = type(cell.setting).model_fields
                varied = [name for name in fields if len({_value(one, name) for one in cell.tried}) > 1]
                names = dict.fromkeys([*SHOWN_SETTINGS, *varied])
                setting = ", ".join(f"{name} {_value(cell.setting, name)}" for name in names)
                models.setdefault((setting, len(cell.tried)), []).append(row.label)
        for (setting, tried), labels in models.items():
            shown = "all" if len(models) == 1 and len(labels) > 1 else ", ".join(labels)
            found.append((task, shown, setting, str(tried)))
    return markdown_table(("task", "model", "setting", "tried"), found) if found else []


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
