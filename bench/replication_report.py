"""The report of a replication: its tables, and a figure with one color per method and one dot per seed."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display on a cluster

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.replication import METHODS, PROBE_METRICS, Replication, markdown, read_replication
from foundation.files import write_atomically

WIDTH = 0.8  # of the methods' dots around a tick


def write_report(output: Path, seeds: Sequence[int]) -> None:
    """Writes `replication.md` and `replication.png` from the results in `output`.

    Raises:
        ConfigError: an evaluation there was written by an older version.
    """
    found = read_replication(output, tuple(seeds))
    write_atomically(output / "replication.md", markdown(found).encode())
    draw(found, output / "replication.png")


def draw(found: Replication, path: Path) -> None:
    """Draws detection and confidence under both distributions, and the probes that were run."""
    probed = {task: metric for task, metric in PROBE_METRICS.items() if any(task in run for run in found.probes)}
    panels = 2 + len(probed)
    figure, (masked, top, *probes) = plt.subplots(1, panels, figsize=(4.0 * panels, 4.4), layout="constrained")
    for number, method in enumerate(METHODS):
        for seed in found.seeds:
            metrics = found.metrics[method, seed]
            for place, name in enumerate(("p_G", "p_S")):
                if name in metrics["detection"]:
                    _dot(masked, place, number, metrics["detection"][name]["accuracy_masked"])
                if name in metrics["max_probability"]:
                    _dot(top, place, number, metrics["max_probability"][name][-1])
            for axes, task in zip(probes, probed, strict=True):
                scores = found.probes.get((method, seed, task), [])
                axes.plot([_place(seed, number)] * len(scores), scores, "o", color=f"C{number}", alpha=0.6)
    for axes, title in ((masked, "Detection accuracy, masked"), (top, "Share of maxima above .9")):
        axes.set(title=title, xticks=(0, 1), xticklabels=("$p_G$", "$p_S$"))
    for axes, (task, metric) in zip(probes, probed.items(), strict=True):
        axes.set(title=f"{task}, {metric}", xlabel="seed of pre-training", xticks=found.seeds)
    for number, method in enumerate(METHODS.values()):
        masked.plot([], [], "o", color=f"C{number}", label=method.label)
    figure.legend(loc="outside lower center", ncols=len(METHODS), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _dot(axes: Axes, place: int, number: int, value: list[float]) -> None:
    """Draws one run's value with its interval."""
    middle, low, high = value
    error = [[middle - low], [high - middle]]
    axes.errorbar(_place(place, number), middle, yerr=error, fmt="o", ms=4, color=f"C{number}", capsize=2)


def _place(tick: int, number: int) -> float:
    return tick + WIDTH * ((number + 0.5) / len(METHODS) - 0.5)
