"""Writes curves for TensorBoard into the run folder, whose name TensorBoard shows as the run's."""

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
"""Layout of TensorBoard's page "Custom scalars": training and held-out text on one chart."""


class Writer:
    """TensorBoard writer. If a write fails, the curves have a gap, and training continues."""

    def __init__(self, folder: Path, step: int) -> None:
        """Discards earlier curves from `step` on, left by an interrupted run."""
        self._folder = folder
        self._gap = 0
        """The last step that could not be written; 0 if none."""
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
                self._board.add_text(
                    name, "\n".join(("```", *lines, "```")), step
                )  # a code block: not read as Markdown
            self._gap = 0
        except OSError:  # the writer's thread has ended; the next step opens a new file
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
        """Flushes. Jobs of several ranks skip the interpreter's shutdown, which would do so otherwise."""
        with suppress(OSError):
            self._board.close()
