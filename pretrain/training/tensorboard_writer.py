"""Curves in TensorBoard: in the run's folder itself, whose name is the run's there."""

import textwrap
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from pretrain.training.curves import CHARTS, Curves, Histogram

LAYOUT = {
    group: {chart: ["Multiline", [rf"{group}/({chart.replace(' ', '|')})/(.+/)?(train|held_out)$"]] for chart in charts}
    for group, charts in CHARTS.items()
}
"""Of the page "Custom scalars": training and held-out text on one chart."""


class Writer:
    """Where the disk does not take them the curves have a gap, and the run goes on."""

    def __init__(self, folder: Path, step: int) -> None:
        """Curves from `step` on are discarded: an interrupted run's."""
        self._folder = folder
        self._gap = 0
        """The last step that the file did not take."""
        self._open(step)

    def _open(self, step: int) -> None:
        self._board = SummaryWriter(str(self._folder), purge_step=step)
        self._board.add_custom_scalars(LAYOUT)

    def write(self, step: int, curves: Curves) -> None:
        if self._gap == step:
            return
        try:
            if self._gap:
                self._open(step)
            for name, value in curves.scalars.items():
                self._board.add_scalar(name, value, step)
            for name, histogram in curves.histograms.items():
                self._add_histogram(name, histogram, step)
            for name, text in curves.texts.items():
                lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
                self._board.add_text(name, "\n".join(("```", *lines, "```")), step)  # as it is: no Markdown
            self._gap = 0
        except OSError:  # its thread has ended; the next step begins a new file
            self._gap = step

    def _add_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        edges, counts = np.array(histogram.edges), np.array(histogram.counts)
        middles, found = (edges[1:] + edges[:-1]) / 2, counts.nonzero()[0]
        self._board.add_histogram_raw(
            name,
            min=edges[found[0]],
            max=edges[found[-1] + 1],
            num=counts.sum(),
            sum=counts @ middles,
            sum_squares=counts @ middles**2,
            bucket_limits=edges[1:].tolist(),
            bucket_counts=counts.tolist(),
            global_step=step,
        )

    def close(self) -> None:
        """Flushes; the interpreter's own shutdown, which would, is skipped among several ranks."""
        with suppress(OSError):
            self._board.close()
