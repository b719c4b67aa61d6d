"""A PNG of where the masks of a folder fall."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display on a cluster

import matplotlib.pyplot as plt
import numpy as np

from data_prep.mask_statistics import PIECES, MaskStatistics
from foundation.config import ConfigError

_BITMAPS, _EXPECTED = "#2a6f97", "#c1440e"
_LONGEST_RUN = 12  # longer ones are rare


def draw_masks(statistics: MaskStatistics, runs: np.ndarray, path: Path) -> None:
    """Run lengths beside the simulated ones, and rates by position and by piece as multiples of the chance.

    Raises:
        ConfigError: the file cannot be written.
    """
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13.0, 3.8), layout="constrained")
    lengths = np.arange(1, _LONGEST_RUN + 1)
    for counts, offset, color, label in (
        (runs, -0.2, _BITMAPS, "bitmaps"),
        (statistics.simulated_runs, 0.2, _EXPECTED, "simulated"),
    ):
        shares = np.pad(counts, (0, _LONGEST_RUN + 1))[1 : _LONGEST_RUN + 1] / max(1, counts.sum())
        left.bar(lengths + offset, shares, 0.4, color=color, label=label)
    left.set(title="Runs of masked tokens", xlabel="tokens", ylabel="share of the runs")
    left.legend(frameon=False)
    seen = statistics.position_chance > 0
    middle.plot(np.flatnonzero(seen), (statistics.position[seen] / statistics.position_chance[seen]), color=_BITMAPS)
    middle.set(title="By position in the sequence", xlabel="position", ylabel="rate / chance")
    right.bar(np.arange(1, PIECES + 1), statistics.piece / np.maximum(1e-9, statistics.piece_chance), color=_BITMAPS)
    right.set(title=f"By piece of the word ({PIECES}: that and later)", xlabel="piece", ylabel="rate / chance")
    for axes in (middle, right):
        axes.axhline(1.0, color=_EXPECTED, linewidth=1)
        axes.set_ylim(0.8, 1.2)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"figure: {path} cannot be written ({error}); give a .png in a folder that exists") from None
    finally:
        plt.close(figure)
