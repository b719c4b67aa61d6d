"""Draws the figures of an evaluation as PNG files; `save` writes every figure of the project."""

from pathlib import Path
from typing import IO, Any

import matplotlib

matplotlib.use("Agg")  # no display on a cluster

import matplotlib.pyplot as plt
import numpy as np

from pretrain.analysis.analysis import PAPER
from pretrain.analysis.observation import Judgement, Observations
from pretrain.training.run_log import read_records

SIZE = (7.0, 4.2)
ORIGINAL, REPLACED, NEUTRAL = "#2a6f97", "#c1440e", "#6c757d"
COLORS = {"p_G": ORIGINAL, "p_S": REPLACED}
CORRELATED = ("original", "replaced", "all", "class_means")
TENTHS = [f"{number / 10}" for number in range(10)]
ACCURACIES = {"accuracy_masked": "masked", "accuracy_all": "all"}


def draw_training(run: Path, path: Path) -> None:
    """Draws the losses over the steps; the dashed line is the loss of always predicting the share of
    replaced tokens.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.2))
    for kind, style in (("train", "-"), ("held_out", "o")):
        records = read_records(run, kind)
        steps = [record["step"] for record in records]
        label = kind.replace("_", " ")
        left.plot(
            steps,
            _column(records, "mlm_loss"),
            style,
            color=ORIGINAL,
            ms=4,
            label=f"MLM cross-entropy, {label}",
        )
        right.plot(
            steps,
            _column(records, "discriminator_loss"),
            style,
            color=REPLACED,
            ms=4,
            label=f"$L_D$, {label}",
        )
        if kind == "train":
            entropy = _column(records, "discriminator_entropy")
            right.plot(steps, entropy, "--", color=NEUTRAL, label="entropy of the replaced share")
    for axes, title in ((left, "Generator"), (right, "Discriminator")):
        axes.set(title=title, xlabel="step", ylabel="nats per position")
        axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def draw_detection(judgement: Judgement, path: Path) -> None:
    """Draws histograms of the discriminator's probability of "replaced", for original and replaced tokens."""
    figure, axes = plt.subplots(figsize=SIZE)
    probability = 1 / (1 + np.exp(-judgement.d))
    bins = np.linspace(0, 1, 41).tolist()
    for replaced, color, label in ((False, ORIGINAL, "original"), (True, REPLACED, "replaced")):
        values = probability[judgement.replaced == replaced]
        axes.hist(values, bins=bins, density=True, alpha=0.65, color=color, label=f"{label} ({len(values):,})")
    axes.set(title="Detection on held-out text", xlabel='predicted probability of "replaced"', ylabel="density")
    axes.legend(frameon=False)
    save(figure, path)


def draw_estimate(observations: Observations, path: Path) -> None:
    """Draws actual over estimated discriminator loss of the sampled tokens, as means of twenty groups by estimate."""
    figure, axes = plt.subplots(figsize=SIZE)
    for other, color, label in (
        (False, ORIGINAL, "sampled the original"),
        (True, REPLACED, "sampled another token"),
    ):
        group = observations.sampled_other == other
        order = np.argsort(observations.estimated_loss[group])
        parts = [part for part in np.array_split(order, 20) if len(part)]
        estimated = [observations.estimated_loss[group][part].mean() for part in parts]
        actual = [observations.actual_loss[group][part].mean() for part in parts]
        axes.plot(estimated, actual, "o-", color=color, ms=4, label=label)
    limits = (0.0, max(axes.get_xlim()[1], axes.get_ylim()[1]))
    axes.plot(limits, limits, "--", color=NEUTRAL, lw=1, label="equal")
    axes.set(title="Estimated and actual loss", xlabel="estimated loss $\\hat{L}_D$", ylabel="actual loss $L_D$")
    axes.legend(frameon=False)
    save(figure, path)


def draw_comparison(result: dict[str, Any], path: Path) -> None:
    """Draws the paper's three figures of a trained model, the paper's numbers as crosses: maximum probabilities of p_S
    and p_G, detection accuracy under both, and correlation of estimated and actual loss.
    """
    figure, (shares, detected, known) = plt.subplots(1, 3, figsize=(14.0, 4.2))
    _draw_shares(shares, [(f"${name}$", COLORS[name], values) for name, values in result["max_probability"].items()])
    _draw_accuracies(detected, result["detection"])
    pearson = result["estimate_quality"].get("pearson", {})
    _draw_values(known, {name: pearson.get(name) for name in CORRELATED}, REPLACED, 0.0, "this run")
    paper = PAPER["estimate_quality"]["pearson"]
    known.plot(range(len(paper)), list(paper.values()), "x", color=NEUTRAL, label="paper")
    known.set(title="Estimated and actual loss", ylabel="Pearson correlation")
    for axes in (shares, detected, known):
        axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=2)
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


def draw_steps(results: list[dict[str, Any]], path: Path) -> None:
    """Draws one run's metrics over its checkpoints; metrics that the run does not have are left out."""
    panels = [
        ("Generator", "MLM accuracy", {"p_G": _across(results, "generator", "mlm_accuracy")}),
        ("Detection, masked positions", "accuracy", _under(results, "detection", "accuracy_masked")),
        ("Detection, all positions", "accuracy", _under(results, "detection", "accuracy_all")),
        ("Detection, all positions", "AUC", _under(results, "detection", "auc_all")),
        ("Discriminator", "$L_D$ / entropy of the replaced share", _under(results, "detection", "loss_over_entropy")),
        (
            "Estimated and actual loss",
            "Pearson correlation",
            {name: _across(results, "estimate_quality", "pearson", name) for name in CORRELATED},
        ),
        ("Maximum probability above 0.9", "share of masked positions", _under(results, "max_probability", -1)),
        ("Weighted estimate of $L_D$", "variance of a sample", _under(results, "loss_estimate", "variance")),
    ]
    drawn = [panel for panel in panels if any(value for values in panel[2].values() for value in values)]
    figure, axes = plt.subplots(2, -(-len(drawn) // 2), figsize=(2.1 * len(drawn) + 0.4, 7.6), squeeze=False)
    for unused in axes.flat[len(drawn) :]:
        unused.remove()
    for place, (title, unit, lines) in zip(axes.flat, drawn, strict=False):
        _draw_lines(place, [part["step"] for part in results], lines)
        place.set(title=title, ylabel=unit)
        place.legend(frameon=False, fontsize=8)
    save(figure, path)


def _across(results: list[dict[str, Any]], *keys: str | int) -> list[list[float] | None]:
    """Returns the number under these nested keys from each result; `None` where it is missing."""
    values: list[Any] = results
    for key in keys:
        values = [value[int(key)] if isinstance(value, list) else (value or {}).get(key) for value in values]
    return values


def _under(results: list[dict[str, Any]], section: str, key: str | int) -> dict[str, list[list[float] | None]]:
    """Returns a number of a section under p_G and under p_S, from each result."""
    return {name: _across(results, section, name, key) for name in COLORS}


def draw_crossing(crossed: dict[str, Any], path: Path) -> None:
    """Draws the paper's appendix figure: detection accuracy of each discriminator on each sampler's replacements.

    One column per set of replacements; masked positions above, all positions below; over the steps if several.
    """
    entries = crossed["entries"]
    sources = list(dict.fromkeys((entry["sampler"], entry["distribution"]) for entry in entries))
    names = run_names([entry["discriminator"] for entry in entries])
    figure, axes = plt.subplots(2, len(sources), figsize=(1.5 + 3.6 * len(sources), 7.6), squeeze=False, sharey="row")
    for row, (key, label) in zip(axes, ACCURACIES.items(), strict=True):
        for place, (sampler, distribution) in zip(row, sources, strict=True):
            here = [entry for entry in entries if (entry["sampler"], entry["distribution"]) == (sampler, distribution)]
            lines: dict[str, list[list[float] | None]] = {}
            for entry in here:
                lines.setdefault(names[entry["discriminator"]], []).append(entry[key])
            _draw_lines(place, sorted({entry["step"] for entry in here}), lines)
            if distribution == "p_S" or (sampler, "p_S") not in sources:
                place.axhline(
                    PAPER["detection"][distribution][key], color=NEUTRAL, ls="--", lw=1, label="paper, trained"
                )
            place.set(title=f"${distribution}$ of {names[sampler]}, {label}")
        row[0].set_ylabel("detection accuracy")
    labelled: dict[str, Any] = {}  # each label once over all panels
    for place in axes.flat:
        labelled |= dict(zip(*reversed(place.get_legend_handles_labels()), strict=True))
    figure.legend(
        labelled.values(), labelled.keys(), frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6
    )
    save(figure, path)


def draw_max_probability(results: list[dict[str, Any]], path: Path) -> None:
    """Draws the distribution of the largest probability under p_G and p_S for several runs, as the paper's figure."""
    figure, axes = plt.subplots(figsize=(9.0, 4.2))
    names = run_names([result["run"] for result in results])
    series = [
        (f"${name}$ of {names[result['run']]}", shares)
        for result in results
        for name, shares in result["max_probability"].items()
    ]
    _draw_shares(axes, [(label, f"C{number}", shares) for number, (label, shares) in enumerate(series)])
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def _draw_shares(axes: Any, series: list[tuple[str, str, list[list[float]]]]) -> None:
    """Draws the shares of masked positions by maximum probability, in tenths, for each (label, color, shares)."""
    width = 0.9 / len(series)
    for number, (label, color, shares) in enumerate(series):
        offset = (number - (len(series) - 1) / 2) * width
        _draw_values(axes, dict(zip(TENTHS, shares, strict=True)), color, offset, label, width)
    axes.set(
        title="Confidence of the distributions", xlabel="maximum probability, from", ylabel="share of masked positions"
    )


def run_names(runs: list[str]) -> dict[str, str]:
    """Returns a label for each run: its folder's name, or its whole path if two folders share the name."""
    paths = {run: Path(run) for run in runs}
    own = [path.name for path in paths.values()]
    return {run: path.name if own.count(path.name) == 1 else run for run, path in paths.items()}


def _draw_lines(axes: Any, steps: list[int], lines: dict[str, list[list[float] | None]]) -> None:
    """Draws lines with their intervals as bands; at a single step, points side by side with error bars."""
    for number, (name, values) in enumerate(lines.items()):
        middle, low, high = np.array([value or [np.nan] * 3 for value in values], dtype=float).T
        if np.isnan(middle).all():
            continue
        color, label = COLORS.get(name, f"C{number}"), f"${name}$" if name in COLORS else name.replace("_", " ")
        if len(steps) == 1:
            axes.errorbar([number], middle, [middle - low, high - middle], fmt="o", color=color, label=label, capsize=3)
            axes.set(xticks=[], xlim=(-1, len(lines)), xlabel=f"step {steps[0]}")
        else:
            axes.plot(steps, middle, "o-", ms=3, color=color, label=label)
            axes.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
            axes.set_xlabel("step")


def _column(records: list[dict[str, Any]], name: str) -> list[float]:
    """Returns a metric of each record; NaN, which is not drawn, where it is missing."""
    return [record.get(name, float("nan")) for record in records]


def save(figure: Any, target: Path | IO[str], **settings: Any) -> None:
    """Writes the figure without top and right spines, cropped tightly unless `settings` say otherwise, and closes it.

    The format follows the suffix of `target`, or `settings`; PNG by default.
    """
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, **({"dpi": 120, "bbox_inches": "tight"} | settings))
    plt.close(figure)
