"""The text of a report: tables beside the paper's rows, differences between models, settings."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from electra_sampler.foundation.markdown_table import markdown_table
from finetune.config import FinetuneConfig
from finetune.reporting.comparisons import Difference, differences
from finetune.reporting.paper_tables import TABLES, Column, Table
from finetune.reporting.results import Cell, Row

SHOWN_SETTINGS = ("learning_rate", "epochs", "weight_decay")
"""The settings that the paper's grid varies; others are shown where the runs vary them."""


def markdown(rows: Sequence[Row], outputs: Sequence[Path] = ()) -> str:
    """Returns the report: the tables, our rows first, with notes; then differences and settings.

    `outputs` are folders that may hold the runs' predictions.
    """
    filled = {title for row in rows for title in row.cells}
    tables = [
        table._replace(columns=tuple(column for column in table.columns if column.title in filled))
        for table in TABLES
        if members(table, rows)
    ]
    lines = ["# Fine-tuning results, by electra-sampler", ""]
    for table in tables:
        lines += [f"## {table.title}", "", *table_lines(table, rows), ""]
    lines += [*notes(rows, tables), ""]
    scored = [table for table in tables if not table.whole]  # the others repeat their columns
    compared = [(table.title, difference_lines(differences(rows, table.columns, outputs))) for table in scored]
    for title, section in (
        *((f"{title}: differences between our own runs", section) for title, section in compared),
        ("Best settings", setting_lines(rows, [column for table in scored for column in table.columns])),
    ):
        lines += [f"## {title}", "", *section, ""] if section else []
    return "\n".join(lines)


def table_lines(table: Table, rows: Sequence[Row]) -> list[str]:
    """Returns the lines of one table: our models that have its scores, then the paper's."""
    own, average = members(table, rows), ["average"] if _averages(table) else []
    shown = [
        [
            row.name,
            *(_show_cell(row.cells.get(column.title)) for column in table.columns),
            *(_mean({title: cell.median for title, cell in row.cells.items()}, table.averaged) for _ in average),
        ]
        for row in own
    ]
    for size in dict.fromkeys(row.size for row in own):
        for label, values in table.paper_rows.get(size, {}).items():
            theirs = {
                column.title: value
                for column in (*table.columns, *table.averaged)
                if column.paper_index is not None and (value := values[column.paper_index]) is not None
            }
            cells = [f"{theirs[title]:.1f}" if (title := column.title) in theirs else "–" for column in table.columns]
            shown.append([f"*paper, {size}: {label}*", *cells, *(_mean(theirs, table.averaged) for _ in average)])
    return markdown_table(["model", *(column.title for column in table.columns), *average], shown)


def _averages(table: Table) -> bool:
    """Returns whether some model of the table can have its average: it has all the columns."""
    return bool(table.averaged) and {*table.averaged} <= {*table.columns}


def _mean(scores: Mapping[str, float], columns: Sequence[Column]) -> str:
    found = [scores[column.title] for column in columns if column.title in scores]
    return f"{fmean(found):.1f}" if len(found) == len(columns) else "–"


def members(table: Table, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with a score in at least one column; for a `whole` table, in every column."""
    enough = all if table.whole else any
    return [row for row in rows if enough(column.title in row.cells for column in table.columns)]


def _show_cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    marks = ("*" if len(cell.tried) > 1 else "") + ("" if cell.official_data else "†")
    collapsed = f", {sum(cell.collapsed)} collapsed" if any(cell.collapsed) else ""
    return (
        f"**{cell.median:.1f}**{marks} ({min(cell.scores):.1f}–{max(cell.scores):.1f}; {len(cell.scores)}{collapsed})"
    )


def notes(rows: Sequence[Row], tables: Sequence[Table]) -> list[str]:
    """Returns the notes that a reader needs to compare the rows."""
    cells = [cell for row in rows for cell in row.cells.values()]
    titles = {column.title for table in tables for column in table.columns}
    head = "Dev sets, percent: **median** (lowest–highest; number of seeds), after the last epoch."
    wanted = {
        "The paper's rows are medians over five seeds; no difference from them is claimed.": any(
            table.paper_rows for table in tables
        ),
        "Collapsed: the model gives every example the same answer, or its loss was no longer finite; the run "
        "still counts.": any(any(cell.collapsed) for cell in cells),
        "\\* the best median of several settings, of those run with the most seeds; chosen on the dev set itself, "
        "as the paper does.": any(len(cell.tried) > 1 for cell in cells),
        "† not trained on the official training set (by its size): not comparable with the paper.": not all(
            cell.official_data for cell in cells
        ),
        "STS-B: the paper's table says Pearson, its text Spearman; its number is shown under both.": (
            "STS-B Pearson" in titles
        ),
        "Average: of the paper's eight columns (MNLI-m, STS-B Pearson), for rows that have them all.": any(
            map(_averages, tables)
        ),
        "SQuAD 2.0: EM, F1, HasAns and NoAns at the fixed threshold on the null score. The paper does not name "
        "its threshold; its numbers are shown under the fixed and the best one.": "SQuAD 2.0 EM" in titles,
    }
    return [head, *(line for note, holds in wanted.items() if holds for line in ("", note))]


def difference_lines(differences: Iterable[Difference]) -> list[str]:
    """Returns a table of the differences, a row per pair of models and a column per score, and how to read it."""
    by_pair: dict[str, dict[str, str]] = {}
    for found in differences:
        cells = by_pair.setdefault(f"{found.second.name} - {found.first.name}", {})
        interval = "" if found.interval is None else "{:+.1f} to {:+.1f}; ".format(*found.interval)
        p = "" if found.p is None else f"p {found.p:.3g}; "
        cells[found.column.title] = f"{found.mean:+.1f} ({interval}{p}{found.seeds})"
    if not by_pair:
        return []
    titles = list(dict.fromkeys(title for cells in by_pair.values() for title in cells))
    rows = [[pair, *(cells.get(title, "–") for title in titles)] for pair, cells in by_pair.items()]
    return [
        *markdown_table(["difference", *titles], rows),
        "",
        "In points: the mean over the seeds both were run with, each under its best setting (95% interval of the "
        "paired bootstrap over the dev examples, the same resamples for both; p of the two-sided paired permutation "
        "test over seeds, with five of them never below .0625; number of seeds). Interval and p are not corrected for "
        "the number of differences or the choice of settings.",
    ]


def setting_lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Returns a table of every model's best setting for each task, judged by the task's first column."""
    first_columns = {column.task: column for column in reversed(columns)}
    found = [
        (task, row.name, _best_setting(cell), str(len(cell.tried)))
        for task, column in reversed(first_columns.items())
        for row in rows
        if (cell := row.cells.get(column.title))
    ]
    return markdown_table(("task", "model", "setting", "tried"), found) if found else []


def _best_setting(cell: Cell) -> str:
    best = cell.records[0].run.settings
    varied = [name for name in type(best).model_fields if len({_shown(one, [name]) for one in cell.tried}) > 1]
    return _shown(best, dict.fromkeys([*SHOWN_SETTINGS, *varied]))


def _shown(setting: FinetuneConfig, names: Iterable[str]) -> str:
    values = {name: getattr(setting, name) for name in names}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )
