"""Fine-tuning results as Markdown tables and a figure, beside the paper's rows.

python finetune/report.py RUNS... [--output FILE]
"""

import sys
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from collections.abc import Sequence
from typing import Annotated

from finetune.reporting.comparisons import differences
from finetune.reporting.paper_tables import TABLES, Table
from finetune.reporting.results import Cell, Row, load_runs, make_rows, shared_folder
from finetune.reporting.sections import collapsed_lines, difference_lines, setting_lines
from foundation.command_line import POSITIONAL, run_command
from foundation.config import ConfigError, StrictConfig
from foundation.markdown_table import markdown_table


class ReportOptions(StrictConfig):
    """Command line of `report.py`."""

    runs: Annotated[tuple[Path, ...], POSITIONAL]
    """output folders of run_glue.py and run_squad.py, or results.jsonl files"""
    output: Path | None = None
    """Markdown file; the figure stands beside it as .png (first RUNS folder/report.md)"""


def main(options: ReportOptions) -> None:
    records = load_runs(options.runs)
    rows = make_rows(records)
    outputs = [path if path.is_dir() else path.parent for path in options.runs]
    output = options.output or outputs[0] / "report.md"
    text = markdown(rows, outputs, str(shared_folder(records)))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"output: cannot write {output}: {error}; give another FILE") from None
    from finetune.reporting.figure import draw_figure  # matplotlib, which --help need not wait for

    panels = [table for table in shown_tables(rows) if not table.whole]  # the others repeat their columns
    draw_figure(rows, panels).savefig(output.with_suffix(".png"), dpi=150)
    print(f"{text}\nwritten to {output} and {output.with_suffix('.png')}")


def markdown(rows: Sequence[Row], outputs: Sequence[Path] = (), folder: str = ".") -> str:
    """The tables, our rows first, the notes they need, and what stands behind them.

    `outputs` are the folders that may hold the runs' predictions, `folder` is the one that all models lie in.
    """
    tables = shown_tables(rows)
    lines = ["# Fine-tuning results", ""]
    for table in tables:
        lines += [f"## {table.title}", "", *table_lines(table, rows), ""]
    lines += [*notes(rows, tables), ""]
    if folder != ".":
        lines += [f"The models lie in {folder}.", ""]
    scored = [table for table in tables if not table.whole]  # the others repeat their columns
    columns = [column for table in scored for column in table.columns]
    compared = [(table.title, difference_lines(differences(rows, table.columns, outputs))) for table in scored]
    for title, section in (
        *((f"{title}: differences between our own runs", section) for title, section in compared),
        ("Best settings", setting_lines(rows, columns)),
        ("Collapsed runs", collapsed_lines(rows)),
    ):
        lines += [f"## {title}", "", *section, ""] if section else []
    return "\n".join(lines)


def table_lines(table: Table, rows: Sequence[Row]) -> list[str]:
    """One table, of the models that belong into it."""
    own = members(table, rows)
    shown = [[row.label, *(_show(row.cells.get(column.title)) for column in table.columns)] for row in own]
    for size in dict.fromkeys(row.size for row in own):
        for label, values in table.paper_rows.get(size, {}).items():
            paper = (None if column.paper_index is None else values[column.paper_index] for column in table.columns)
            shown.append([f"*paper, {size}: {label}*", *("–" if value is None else f"{value:.1f}" for value in paper)])
    return markdown_table(["model", *(column.title for column in table.columns)], shown)


def shown_tables(rows: Sequence[Row]) -> list[Table]:
    """The tables that some model belongs into, with the columns in which one has a score."""
    filled = {title for row in rows for title in row.cells}
    return [
        table._replace(columns=tuple(column for column in table.columns if column.title in filled))
        for table in TABLES
        if members(table, rows)
    ]


def members(table: Table, rows: Sequence[Row]) -> list[Row]:
    """The models with a score in some column, or in every one."""
    enough = all if table.whole else any
    return [row for row in rows if enough(column.title in row.cells for column in table.columns)]


def _show(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    marks = ("*" if len(cell.tried) > 1 else "") + ("" if cell.official_data else "†")
    collapsed = f", {sum(cell.collapsed)} collapsed" if any(cell.collapsed) else ""
    spread = f"{min(cell.scores):.1f}–{max(cell.scores):.1f}"
    return f"**{cell.median:.1f}**{marks} ({spread}; {len(cell.scores)}{collapsed})"


def notes(rows: Sequence[Row], tables: Sequence[Table]) -> list[str]:
    """What a reader must know to compare the rows."""
    cells = [cell for row in rows for cell in row.cells.values()]
    titles = {column.title for table in tables for column in table.columns}
    lines = [
        "Dev sets, per cent: **median** (lowest–highest; number of seeds), after the last epoch.",
        "The paper's rows are medians over five seeds; no difference from them is claimed.",
    ]
    if any(any(cell.collapsed) for cell in cells):
        lines += [
            "",
            "Collapsed: the model gives every example the same answer, or its loss was no longer finite; the run is "
            "counted all the same.",
        ]
    if any(len(cell.tried) > 1 for cell in cells):
        lines += [
            "",
            "\\* the best median of several settings, of those run with the most seeds; chosen on the dev set itself, "
            "as the paper does.",
        ]
    if not all(cell.official_data for cell in cells):
        lines += [
            "",
            "† not trained on the official training set (by its size): not comparable with the paper.",
        ]
    records = [record for cell in cells for record in cell.records]
    if left_out := {file: count for record in records for file, count in record.left_out.items()}:
        lines += [
            "",
            f"Malformed rows left out: {', '.join(f'{count} of {file}' for file, count in left_out.items())}.",
        ]
    if "STS-B Pearson" in titles:
        lines += [
            "",
            "STS-B: the paper's table says Pearson, its text Spearman; its number stands under both.",
        ]
    if "SQuAD 2.0 EM" in titles:
        lines += [
            "",
            "SQuAD 2.0: EM, F1, HasAns and NoAns at the fixed threshold on the null score. The paper does not name "
            "its threshold; its numbers stand under the fixed and the best one.",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(run_command(main, ReportOptions, __doc__))
