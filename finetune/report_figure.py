"""The figure of a report: every seed a dot, or a cross where it collapsed, every median a bar, beside the paper's."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from finetune.paper_tables import Table
from finetune.results import Row

PAPER_MARKS = {"ELECTRA (reimplementation)": "x", "HP_Loss + Focal": "+"}


def draw(rows: Sequence[Row], tables: Sequence[Table], path: Path) -> None:
    """Writes the figure as PNG."""
    figure = draw_figure(rows, tables)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_figure(rows: Sequence[Row], tables: Sequence[Table]) -> Figure:
    """A panel a table, a colour a model, a place on the horizontal axis a column."""
    width = 5 + 1.2 * max(len(table.columns) for table in tables)
    figure, panels = plt.subplots(len(tables), figsize=(width, 4.5 * len(tables)), layout="constrained", squeeze=False)
    for axes, table in zip(panels.flat, tables, strict=True):
        for index, row in enumerate(rows):
            offset = 0.6 * ((index + 0.5) / len(rows) - 0.5)
            _draw_row(axes, row, table, offset, f"C{index}")
        _draw_paper(axes, rows, table)
        axes.set_xticks(range(len(table.columns)), [column.title for column in table.columns])
        axes.set_xlim(-0.6, len(table.columns) - 0.4)
        axes.set_ylabel(f"{table.title} dev score, per cent")
        axes.grid(axis="y", alpha=0.3)
    labels: dict[str, Artist] = {}
    for axes in panels.flat:
        labels |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels.keys(), loc="outside right upper", fontsize="small")
    return figure


def _draw_row(axes: Axes, row: Row, table: Table, offset: float, colour: str) -> None:
    for place, column in enumerate(table.columns):
        cell = row.cells.get(column.title)
        if cell:
            for score, collapsed in zip(cell.scores, cell.collapsed, strict=True):
                axes.plot(place + offset, score, "X" if collapsed else "o", alpha=0.5, color=colour)
            axes.plot(place + offset, cell.median, "_", markersize=18, markeredgewidth=3, color=colour)
    axes.plot([], [], "o", color=colour, label=row.label)


def _draw_paper(axes: Axes, rows: Sequence[Row], table: Table) -> None:
    """The paper's medians, on the columns it has whose data were the official ones for one of our rows."""
    places = [
        (place, column.paper_index)
        for place, column in enumerate(table.columns)
        if column.paper_index is not None
        and any(row.cells[column.title].official_data for row in rows if column.title in row.cells)
    ]
    if not places:
        return
    for size in dict.fromkeys(row.size for row in rows):
        for label, mark in PAPER_MARKS.items():
            values = [table.paper_rows[size][label][index] or float("nan") for _, index in places]
            axes.plot([place for place, _ in places], values, mark, color="black", label=f"paper, {size}: {label}")
