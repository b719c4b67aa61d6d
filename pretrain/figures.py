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


def _column(records: list[dict[str, Any]], name: str) -> list[float]:
    return [record[name] for record in records]


def _save(figure: Any, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
