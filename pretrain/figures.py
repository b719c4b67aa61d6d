"""The figures of an evaluation, as PNG files."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display on a cluster

import matplotlib.pyplot as plt
import numpy as np

from pretrain.analysis import Observations
from pretrain.run_log import read_records

SIZE = (7.0, 4.2)
PAPER_ACCURACY = {"p_G": (0.81, 0.96), "p_S": (0.72, 0.95)}  # paper section 5: masked, all; ELECTRA and HP_Loss
PAPER_CORRELATION = {"original": 0.78, "replaced": 0.61, "all": 0.64}  # paper section 5, HP_Loss
ORIGINAL, REPLACED, NEUTRAL = "#2a6f97", "#c1440e", "#6c757d"


def draw_training(run: Path, path: Path) -> None:
    """Losses over the steps, the discriminator's beside the entropy it would sit at if it knew nothing."""
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
        axes.set(title=title, xlabel="step", ylabel="nats a position")
        axes.legend(frameon=False, fontsize=8)
    _save(figure, path)


def draw_detection(observations: Observations, path: Path) -> None:
    """How the discriminator's probability of "replaced" is spread over original and replaced tokens."""
    figure, axes = plt.subplots(figsize=SIZE)
    probability = 1 / (1 + np.exp(-observations.d))
    bins = np.linspace(0, 1, 41).tolist()
    for replaced, color, label in ((False, ORIGINAL, "original"), (True, REPLACED, "replaced")):
        values = probability[observations.replaced == replaced]
        axes.hist(values, bins=bins, density=True, alpha=0.65, color=color, label=f"{label} ({len(values):,})")
    axes.set(title="Detection on held-out text", xlabel='predicted probability of "replaced"', ylabel="density")
    axes.legend(frameon=False)
    _save(figure, path)


def draw_estimate(observations: Observations, path: Path) -> None:
    """Estimated against actual discriminator loss of the sampled tokens: means in twenty groups by the estimate."""
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
    axes.set(title="What the sampling head knows", xlabel="estimated loss $\\hat{L}_D$", ylabel="actual loss $L_D$")
    axes.legend(frameon=False)
    _save(figure, path)


def draw_comparison(result: dict[str, Any], path: Path) -> None:
    """The paper's three pictures of a trained model, its numbers as crosses: how sure p_S is beside p_G, what the
    discriminator detects under both, and how well the estimate knows the loss.
    """
    figure, (shares, detected, known) = plt.subplots(1, 3, figsize=(14.0, 4.2))
    places = np.arange(10) / 10 + 0.05
    for offset, name, color in ((-0.02, "p_G", ORIGINAL), (0.02, "p_S", REPLACED)):
        shares.bar(places + offset, result["max_probability"][name], width=0.04, color=color, label=f"${name}$")
    shares.set(title="How sure the distribution is", xlabel="maximum probability", ylabel="share of masked positions")
    _draw_accuracies(detected, result["detection"])
    correlations = {name.replace("_", " "): v for name, v in result["estimate_quality"].get("pearson", {}).items()}
    _draw_values(known, correlations, REPLACED, 0.0, "this run")
    known.plot(list(PAPER_CORRELATION), list(PAPER_CORRELATION.values()), "x", color=NEUTRAL, label="paper")
    known.set(title="Estimated and actual loss", ylabel="Pearson correlation")
    for axes in (shares, detected, known):
        axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=2)
    _save(figure, path)


def _draw_accuracies(axes: Any, detection: dict[str, dict[str, Any]]) -> None:
    labels = {"accuracy_masked": "masked", "accuracy_all": "all"}
    for offset, name, color in ((-0.15, "p_G", ORIGINAL), (0.15, "p_S", REPLACED)):
        values = {label: detection[name][key] for key, label in labels.items()}
        _draw_values(axes, values, color, offset, f"replacements from ${name}$")
        paper = PAPER_ACCURACY[name]
        axes.plot(np.arange(2) + offset, paper, "x", color=color, label=f"paper, trained on ${name}$")
    axes.set(title="Detection", ylabel="accuracy", xticks=range(2), xticklabels=labels.values())


def _draw_values(axes: Any, values: dict[str, list[float] | None], color: str, offset: float, label: str) -> None:
    """Bars with their intervals; a value that does not exist leaves its place empty."""
    for number, (name, value) in enumerate(values.items()):
        middle, low, high = value or (0.0, 0.0, 0.0)
        error = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
        place = name if not offset else number + offset
        axes.bar(place, middle, yerr=error, width=0.3, color=color, label=None if number else label, capsize=3)


def _column(records: list[dict[str, Any]], name: str) -> list[float]:
    """Not a number where a record has no such value: nothing is drawn there."""
    return [record.get(name, float("nan")) for record in records]


def _save(figure: Any, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
