"""The figure of a report: a dot per seed, or a cross if it collapsed; a bar per median; a line per paper result."""

import math
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from finetune.reporting.paper_tables import Column, Table
from finetune.reporting.results import Cell, Row

PAPER_STYLES = {"ELECTRA (reimplementation)": ":", "HP_Loss + Focal": "--", "HP_Dist + Focal": "-."}
PAPER_COLORS = {"small": "black", "base": "dimgrey"}
ACROSS = 5
"""Maximum panels side by side."""
LEAST_SPAN = 4
"""Smallest range of a panel, in points, so that noise does not look like a difference."""


def draw(rows: Sequence[Row], tables: Sequence[Table]) -> Figure:
    """Draws one panel per column, each with its own scale; a model has the same color and place in all panels."""
    chosen = [(table, column) for table in tables for column in table.columns]
    across, down = min(len(chosen), ACROSS), math.ceil(len(chosen) / ACROSS)
    figure = Figure(figsize=(3.5 + (1.6 + 0.15 * len(rows)) * across, 2.5 * down + 0.5), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False)
    for axes in panels.flat[len(chosen) :]:
        axes.remove()
    palette = matplotlib.colormaps["tab10" if len(rows) <= 10 else "tab20"]
    for axes, (table, column) in zip(panels.flat, chosen, strict=False):
        axes.set_title(column.title, fontsize="medium")
        axes.grid(axis="y", alpha=0.3)
        axes.set_xticks([])
        axes.set_xlim(-0.7, len(rows) - 0.3)
        for place, row in enumerate(rows):
            if cell := row.cells.get(column.title):
                _draw_cell(axes, cell, place, row.name, palette(place % palette.N))
        _draw_paper(axes, rows, table, column)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, (low + high - LEAST_SPAN) / 2), max(high, (low + high + LEAST_SPAN) / 2))
    figure.supylabel("dev score, percent", fontsize="medium")
    legends = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes)
    labels = {label: handle for legend in legends for handle, label in legend}
    figure.legend(labels.values(), labels.keys(), loc="outside right upper", fontsize="small")
    return figure


def _draw_cell(axes: Axes, cell: Cell, place: int, name: str, color: tuple[float, ...]) -> None:
    """Draws a model's scores and their median."""
    for score, collapsed in zip(cell.scores, cell.collapsed, strict=True):
        axes.plot(place, score, "X" if collapsed else "o", alpha=0.5, color=color, zorder=3)
    axes.plot([place - 0.4, place + 0.4], [cell.median] * 2, linewidth=2, color=color, label=name)


def _draw_paper(axes: Axes, rows: Sequence[Row], table: Table, column: Column) -> None:
    """Draws the paper's medians, if it has the column and one of our models was trained on the official data."""
    cells = [row.cells[column.title] for row in rows if column.title in row.cells]
    if column.paper_index is None or not any(cell.official_data for cell in cells):
        return
    for size in dict.fromkeys(row.size for row in rows):
        for label, style in PAPER_STYLES.items():
            value = table.paper_rows[size][label][column.paper_index]
            assert value is not None  # these rows of the paper have every column
            axes.axhline(value, linestyle=style, linewidth=1, color=PAPER_COLORS[size], label=f"paper, {size}: {label}")
