"""Draws the charts of a run's page as SVG, each with a table of its numbers and a sentence that states its finding.

With one run, colors distinguish metrics; with several, they distinguish runs.
"""

import io
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from pretrain.analysis.figures import NEUTRAL, TENTHS, save
from pretrain.analysis.panels import PALETTE, Curve, Panel
from pretrain.analysis.run_history import History, value_of

INK, RULE = "#123456", "#123457"
VARIABLES = {color: f"var(--c{number})" for number, color in enumerate(PALETTE)} | {
    NEUTRAL: "var(--neutral)",
    INK: "var(--quiet)",
    RULE: "var(--rule)",
}
"""CSS variables that replace the drawn colors in the page, so that they follow its light or dark style."""
LETTERS = ("p_", "L_")
"""Prefixes of the paper's symbols, which are never capitalized."""
DASHES = ("", "5 3", "2 2", "8 3 2 3")
STYLE = {
    "svg.fonttype": "none",
    "font.size": 10.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": RULE,
    "grid.color": RULE,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}
THOUSANDS = EngFormatter(sep="")
MOST_ROWS, MOST_MARKS = 40, 40
STILL = 0.02
"""Relative change below which a value counts as unchanged."""
_NOT_NEEDED = re.compile(
    r'^.*?(?=<svg)|<style.*?</style>| (?:width|height)="[\d.]+pt"| id="[\w.]+_\d+"| transform="rotate\(-0 .*?\)"'
    r"|font-size:[^;]*; font-family: [^;]*; ",
    re.DOTALL,
)
"""Parts of matplotlib's SVG that are removed: the page has its own fonts, and ids must be unique in it."""


class Line(NamedTuple):
    """The points of one metric of one run, and how to draw them."""

    run: str
    label: str
    color: str
    dash: int
    points: dict[float, float]
    held_out: bool = False

    @property
    def variable(self) -> str:
        """The CSS variable of its color."""
        return VARIABLES[self.color]

    @property
    def last(self) -> float:
        """The newest value."""
        return [*self.points.values()][-1]


class Chart(NamedTuple):
    """A panel drawn as SVG, with its lines and a sentence on what it shows."""

    panel: Panel
    lines: list[Line]
    svg: str
    finding: str

    @property
    def rows(self) -> list[tuple[float, list[float | None]]]:
        """The table of the chart's numbers: at most 40 evenly chosen steps, plus as many steps of evaluations."""
        steps = sorted({x for line in self.lines for x in line.points})
        held_out = sorted({x for line in self.lines if line.held_out for x in line.points})
        chosen = sorted({*evenly(steps, MOST_ROWS), *evenly(held_out, MOST_ROWS)})
        return [(x, [line.points.get(x) for line in self.lines]) for x in chosen]


def charts(panels: Sequence[Panel], runs: dict[str, History]) -> list[Chart]:
    """Draws the panels for which any run has data."""
    found = []
    for panel in panels:
        if lines := lines_of(panel, runs):
            found.append(Chart(panel, lines, draw(panel, lines), finding(panel, lines)))
    return found


def lines_of(panel: Panel, runs: dict[str, History]) -> list[Line]:
    """Returns the lines of a panel for these runs, given by name."""
    lines = []
    for (name, history), own in zip(runs.items(), PALETTE, strict=False):
        for curve in panel.curves if len(runs) == 1 else panel.curves[: panel.compared]:
            color = curve.color if len(runs) == 1 else own
            for held_out, points in enumerate(_points(panel, curve, history)):
                if points and not (held_out and curve.color == NEUTRAL):
                    lines.append(Line(name, curve.label, color, curve.dash, points, bool(held_out)))
    return lines


def _points(panel: Panel, curve: Curve, history: History) -> list[dict[float, float]]:
    """Returns the points of a curve's metric, in training and on held-out text."""
    if panel.over_tenths:
        return [
            _finite({place / 10: value_of(history.newest, f"{curve.path}/{place}") for place in range(len(TENTHS))})
        ]
    found = []
    for records in (history.log.train, history.log.held_out):
        points = _finite({record["step"]: value_of(record, curve.path) for record in records})
        found.append({x: y for x, y in points.items() if y > 0 or not panel.logarithmic})
    return found


def _finite(points: dict[float, float]) -> dict[float, float]:
    return {x: y for x, y in points.items() if math.isfinite(y)}


def draw(panel: Panel, lines: Sequence[Line]) -> str:
    """Returns the chart as an `svg` element; the page itself adds title and legend."""
    with plt.rc_context(STYLE | {"svg.hashsalt": panel.title}):
        figure, axes = plt.subplots(figsize=(5.2, 2.6))
        for line in lines:
            xs, ys = ([*part] for part in (line.points, line.points.values()))
            if line.held_out:
                shown = evenly(xs, MOST_MARKS)
                axes.plot(shown, [line.points[x] for x in shown], "o", ms=4, color=line.color)
            else:
                dashes = [float(part) for part in DASHES[line.dash].split()]
                marker = "." if len(xs) == 1 or panel.over_tenths else ""
                axes.plot(xs, ys, color=line.color, lw=1.6, marker=marker, dashes=dashes or (None, None))
        axes.grid(axis="y", lw=0.8)
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=not panel.over_tenths))
        values = [y for line in lines for y in line.points.values()]
        if panel.logarithmic and max(values) > 20 * min(values):
            axes.set_yscale("log")
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < 1000 * min(values) else (1,)))
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}" if abs(value) < 1000 else THOUSANDS(value))
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        save(figure, file, format="svg", bbox_inches=None, metadata=nothing)
    text = file.getvalue()
    for color, variable in VARIABLES.items():
        text = text.replace(color, variable)
    return _NOT_NEEDED.sub("", text)


def finding(panel: Panel, lines: Sequence[Line]) -> str:
    """States what the chart shows, in one sentence."""
    several = len({line.run for line in lines}) > 1
    if panel.over_tenths:
        sure = (f"{line.run} {line.label}" if several else line.label for line in lines)
        shares = ", ".join(f"{who} {number(line.points.get(0.9))}" for who, line in zip(sure, lines, strict=True))
        return f"Share of positions with a maximum probability above 0.9: {shares}"
    ends = {(line.run, line.label): line.last for line in sorted(lines, key=lambda line: line.held_out)}
    if several:
        label = lines[0].label
        values = ", ".join(f"{run} {number(value)}" for (run, what), value in ends.items() if what == label)
        return _sentence(f"{label} at the end{', held out' * any(line.held_out for line in lines)}: {values}")
    parts = []
    for line in [line for line in lines if not line.held_out] or lines:
        first, last, end = next(iter(line.points.values())), line.last, ends[line.run, line.label]
        change = f"from {number(first)} {'down' if last < first else 'up'} to"
        if abs(last - first) <= STILL * max(abs(first), abs(last)):
            change = "near"
        parts.append(f"{line.label} {change} {number(last)}" + (f", held out {number(end)}" if end != last else ""))
    return _sentence("; ".join(parts))


def _sentence(text: str) -> str:
    return text if text.startswith(LETTERS) else text[0].upper() + text[1:]


def number(value: float | None, digits: int = 3) -> str:
    """Formats a number for reading, with three significant digits by default."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:#.{digits}g}".rstrip(".")


def evenly(values: Sequence[float], most: int) -> list[float]:
    """Returns at most `most` of the values, evenly spaced, including the first and the last."""
    return [values[round(place)] for place in np.linspace(0, len(values) - 1, min(len(values), most))]
