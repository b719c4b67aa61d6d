"""Draws the paper's figures of an evaluation, and the charts of a run's page."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator, NullFormatter

from pretrain.analysis.analysis import PAPER
from pretrain.analysis.run_history import Log, value_of

plt.rcParams.update(
    {
        "backend": "Agg",  # no display on a cluster
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
)

ORIGINAL, REPLACED, NEUTRAL = "#2a6f97", "#c1440e", "#6c757d"
PALETTE = (ORIGINAL, REPLACED, "#2e7d4f", "#7b4fa3", "#8a6d00", "#b0306a")
"""Colors of metrics, or of runs if there are several; more would be hard to distinguish."""
DASHES = ("-", "--", ":", "-.")
MOST_POINTS, MOST_DOTS = 400, 40
"""Maximum number of points in a line, and of dots for held-out text."""
COLORS = {"p_G": ORIGINAL, "p_S": REPLACED}
ACCURACIES = {"accuracy_masked": "masked", "accuracy_all": "all"}


class Chart(NamedTuple):
    """Metrics of a run's log over its steps, drawn on the same axes."""

    title: str
    unit: str
    metrics: dict[str, str]
    """The path of each metric in a record, by its label."""
    logarithmic: bool = False


CHARTS = {
    "Learning": (
        Chart("Generator", "nats per masked position", {"MLM cross-entropy": "mlm_loss"}),
        Chart(
            "Discriminator",
            "nats per position",
            {"L_D": "discriminator_loss", "entropy of the replaced share": "discriminator_entropy"},
        ),
        Chart("Detection", "AUC", {"all positions": "auc_all", "masked positions": "auc_masked"}),
        Chart("Detection", "accuracy", {"masked positions": "accuracy_masked", "all positions": "accuracy_all"}),
        Chart("Gradient norm", "before clipping", {"gradient norm": "gradient_norm"}, logarithmic=True),
        Chart("Learning rate", "of the last update", {"learning rate": "learning_rate"}),
    ),
    "p_S against p_G": (
        Chart(
            "Maximum probability above 0.9",
            "share of masked positions",
            {"p_G": "max_probability/p_G/9", "p_S": "max_probability/p_S/9"},
        ),
        Chart("Entropy", "nats per masked position", {"p_G": "entropy/p_G", "p_S": "entropy/p_S"}),
        Chart(
            "p_G / p_S at the drawn tokens",
            "percentiles",
            {f"{percentile}%": f"ratio_p{percentile}" for percentile in (50, 1, 90, 99)},
            logarithmic=True,
        ),
        Chart(
            "Estimated and actual loss",
            "Pearson correlation",
            {name: f"estimate_correlation/{name}" for name in ("original", "replaced", "all")},
        ),
        Chart("Replaced", "share of masked positions", {"replaced": "replace_rate"}),
    ),
    "Throughput": (
        Chart("Speed", "tokens per second", {"tokens per second": "tokens_per_second"}),
        Chart("Speed", "share of the machine's matrix-product speed", {"share of the limit": "peak_share"}),
        Chart(
            "Ranks",
            "own seconds per step",
            {"slowest": "slowest_rank_seconds", "median": "median_rank_seconds"},
        ),
    ),
}
"""The charts of a run's page by section."""


def draw_charts(charts: Sequence[Chart], logs: Mapping[str, Log]) -> str:
    """Returns one SVG image of all charts with data in at least one log (by run name); empty if there is none."""
    drawn = [
        chart for chart in charts if any(_points(log, path) for log in logs.values() for path in chart.metrics.values())
    ]
    if not drawn:
        return ""
    file, rows = io.StringIO(), -(-len(drawn) // 3)
    with plt.rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "page"}):
        figure, places = plt.subplots(rows, 3, figsize=(15.0, 3.8 * rows), squeeze=False)
        for unused in places.flat[len(drawn) :]:
            unused.remove()
        for axes, chart in zip(places.flat, drawn, strict=False):
            _draw_chart(axes, chart, logs)
        save(figure, file, format="svg", metadata={"Date": None}, bbox_inches=None)
    return file.getvalue()


def _points(log: Log, path: str, kind: str = "train") -> dict[int, float]:
    """Returns the values of a metric by step, from at most `MOST_POINTS` evenly spaced records of a kind."""
    records = getattr(log, kind)
    chosen = records[:: -max(1, -(-len(records) // MOST_POINTS))][::-1]  # counted from the newest
    return {record["step"]: value for record in chosen if math.isfinite(value := value_of(record, path))}


def _draw_chart(axes: Any, chart: Chart, logs: Mapping[str, Log]) -> None:
    """Draws training as lines and held-out text as at most `MOST_DOTS` dots.

    Colors distinguish metrics; with several runs, colors distinguish runs and dashes distinguish metrics.
    """
    several = len(logs) > 1
    for (name, log), own in zip(logs.items(), PALETTE, strict=False):
        for (label, path), color, dashes in zip(chart.metrics.items(), PALETTE, DASHES, strict=False):
            points, held_out = _points(log, path), _points(log, path, "held_out")
            named = {} if several else {"label": label}
            marker = "." if len(points) == 1 else ""
            style = {"color": own if several else color, "ms": 4.0}
            axes.plot([*points], [*points.values()], dashes, lw=1.4, marker=marker, **style, **named)
            steps = [*held_out][:: -max(1, -(-len(held_out) // MOST_DOTS))]  # from the newest on
            axes.plot(steps, [held_out[step] for step in steps], "o", **style)
        if several:
            axes.plot([], [], color=own, label=name)
    for label, dashes in zip(chart.metrics, DASHES, strict=False) if several else ():
        axes.plot([], [], dashes, color=NEUTRAL, label=label)
    axes.plot([], [], "o", ms=4.0, color=NEUTRAL, label="held out")
    axes.set(title=chart.title, xlabel="step", ylabel=chart.unit)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.logarithmic:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=2)


def draw_comparison(result: dict[str, Any], path: Path) -> None:
    """Draws the paper's three figures of a trained model, the paper's numbers as crosses: maximum probabilities of p_S
    and p_G, detection accuracy under both, and correlation of estimated and actual loss.
    """
    figure, (shares, detected, known) = plt.subplots(1, 3, figsize=(14.0, 4.2))
    _draw_shares(shares, [(f"${name}$", COLORS[name], values) for name, values in result["max_probability"].items()])
    _draw_accuracies(detected, result["detection"])
    pearson = result["estimate_quality"].get("pearson", {})
    _draw_values(
        known,
        {name: pearson.get(name) for name in ("original", "replaced", "all", "class_means")},
        REPLACED,
        0.0,
        "this run",
    )
    paper = PAPER["estimate_quality"]["pearson"]
    known.plot(range(len(paper)), list(paper.values()), "x", color=NEUTRAL, label="paper")
    known.set(title="Estimated and actual loss", ylabel="Pearson correlation")
    for axes in (shares, detected, known):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=2)
    save(figure, path)


def draw_steps(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the figure of the paper's appendix: detection accuracy over the steps, on p_G's and p_S's replacements."""
    figure, places = plt.subplots(1, 2, figsize=(10.0, 4.2))
    steps = [result["step"] for result in results]
    for axes, (key, label) in zip(places, ACCURACIES.items(), strict=True):
        for name, color in COLORS.items():
            if name in results[0]["detection"]:
                middle, low, high = np.array([result["detection"][name][key] for result in results]).T
                axes.plot(steps, middle, ".-", color=color, label=f"replacements from ${name}$")
                axes.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
        axes.set(title=f"Detection, {label} positions", xlabel="step", ylabel="accuracy")
        axes.legend()
    save(figure, path)


def draw_confidence(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the paper's figure of maximum probabilities: the baseline's p_G beside each other run's own."""
    figure, axes = plt.subplots(figsize=(7.0, 4.2))
    series = []
    for result, color in zip(results, PALETTE, strict=False):
        under = result["max_probability"]
        name = "p_S" if result is not results[0] and "p_S" in under else "p_G"
        series.append((f"{Path(result['run']).name}, ${name}$", color, under[name]))
    _draw_shares(axes, series)
    axes.legend()
    save(figure, path)


def _draw_accuracies(axes: Any, detection: dict[str, dict[str, Any]]) -> None:
    for offset, name in zip((-0.15, 0.15), COLORS, strict=True):
        if name in detection:
            values = {label: detection[name][key] for key, label in ACCURACIES.items()}
            _draw_values(axes, values, COLORS[name], offset, f"replacements from ${name}$")
        paper = [PAPER["detection"][name][key] for key in ACCURACIES]
        axes.plot(np.arange(2) + offset, paper, "x", color=COLORS[name], label=f"paper, trained on ${name}$")
    axes.set(title="Detection", ylabel="accuracy", xticks=range(2), xticklabels=ACCURACIES.values())


def _draw_values(
    axes: Any, values: dict[str, list[float] | None], color: str, offset: float, label: str, width: float = 0.3
) -> None:
    """Draws bars with error intervals; a missing value leaves a gap."""
    middle, low, high = np.array([value or [0.0] * 3 for value in values.values()]).T
    places, error = np.arange(len(values)), np.maximum(0, [middle - low, high - middle])
    axes.bar(places + offset, middle, yerr=error, width=width, color=color, label=label, capsize=2)
    axes.set_xticks(places, [name.replace("_", " ") for name in values])


def _draw_shares(axes: Any, series: list[tuple[str, str, list[list[float]]]]) -> None:
    """Draws a histogram over tenths of the maximum probability for each (label, color, shares of masked positions)."""
    width = 0.9 / len(series)
    for number, (label, color, shares) in enumerate(series):
        offset = (number - (len(series) - 1) / 2) * width
        _draw_values(axes, {f"{tenth / 10}": share for tenth, share in enumerate(shares)}, color, offset, label, width)
    axes.set(
        title="Confidence of the distributions", xlabel="maximum probability, from", ylabel="share of masked positions"
    )


def save(figure: Any, target: Path | IO[str], **settings: Any) -> None:
    """Writes the figure and closes it; `settings` go to matplotlib's `savefig`.

    By default the figure is cropped tightly, and the suffix of `target` sets the format; without a suffix, it is PNG.
    """
    figure.tight_layout()
    figure.savefig(target, **({"dpi": 120, "bbox_inches": "tight"} | settings))
    plt.close(figure)
