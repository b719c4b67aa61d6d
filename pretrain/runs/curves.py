"""The curves of a run: their names and groups, and where they are drawn: TensorBoard, W&B.

A curve is named GROUP/NAME/KIND, for example `Loss/discriminator_loss/train`; NAME is as in `metrics.jsonl`.
"""

import html
import json
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_sampler.foundation.config import explained
from pretrain.runs.folder import DESCRIPTION, flat

CHARTS = {
    "Loss": ("generator_loss", "sampler_loss", "discriminator_loss discriminator_entropy"),
    "Generator": ("mlm_loss", "mlm_accuracy"),
    "Detection": (
        *("accuracy_masked", "accuracy_unmasked", "accuracy_all", "precision", "recall"),
        *("auc_all", "auc_masked", "accuracy_masked_under", "accuracy_all_under"),
    ),
    "Sampling": ("replace_rate", "replaced_share", "entropy"),
    "Ratio": ("ratio_p1 ratio_p50 ratio_p90 ratio_p99",),
    "Estimate": ("estimate_correlation",),
    "Optimization": ("learning_rate", "gradient_norm", "loss_scale", "skipped", "loss_spikes"),
    "Speed": ("tokens_per_second", "samples_per_second", "tflops", "peak_share"),
    "Memory": ("gpu_memory_gb",),
    "Ranks": ("slowest_rank", "slowest_rank_seconds median_rank_seconds"),
    "Data": ("epoch epoch_of_folder", "tokens", "tokens_so_far", "flops_so_far"),
}
"""The charts of each group. One string is one chart, of one or several metrics, in training and on held-out text."""
GROUPS = {
    **{name: group for group, charts in CHARTS.items() for chart in charts for name in chart.split()},
    "logit": "Detection",
    "max_probability": "Sampling",
    "log_ratio": "Ratio",
    "example": "Example",
}
"""The group of each metric, histogram and text."""


class Histogram(NamedTuple):
    """A histogram: bin edges, and the count between each edge and the next."""

    edges: Sequence[float]
    counts: Sequence[float]


class Curves(NamedTuple):
    """Scalars and histograms that a writer draws at one step, by curve name."""

    scalars: Mapping[str, float] = {}
    histograms: Mapping[str, Histogram] = {}
    texts: Mapping[str, str] = {}


def curve_name(kind: str, path: str) -> str:
    """Returns the curve name of the metric at this path."""
    return f"{GROUPS[path.split('/')[0]]}/{path}/{kind}"


def curves_of(kind: str, values: Mapping[str, Any]) -> Curves:
    """Converts a record to curves: `max_probability` (shares over equal parts of [0, 1]) to histograms, the rest to
    scalars.
    """
    scalars = {name: value for name, value in values.items() if name != "max_probability"}
    histograms = {
        curve_name(kind, f"max_probability/{path}"): Histogram(
            [place / len(shares) for place in range(len(shares) + 1)], shares
        )
        for path, shares in values.get("max_probability", {}).items()
        if any(shares)
    }
    return Curves({curve_name(kind, path): value for path, value in flat(scalars, "/", lists=True)}, histograms)


class TensorBoard:
    """Writes curves into the run folder, whose name TensorBoard shows; a failed write leaves a gap in the curves."""

    LAYOUT = {
        group: {
            chart: ["Multiline", [rf"{group}/({chart.replace(' ', '|')})/(.+/)?(train|held_out)$"]] for chart in charts
        }
        for group, charts in CHARTS.items()
    }
    """Layout of TensorBoard's page "Custom scalars": training and held-out text on one chart."""

    def __init__(self, folder: Path, step: int) -> None:
        """Discards earlier curves from `step` on, left by an interrupted run."""
        self._folder = folder
        self._open(step)

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self._folder), purge_step=step)
        self._board.add_custom_scalars(self.LAYOUT)
        self._gap = False

    def write(self, step: int, curves: Curves) -> None:
        try:
            if self._gap:
                self._open(step)
            self._add(step, curves)
        except OSError:  # a full disk ended the writer's thread: the next write opens a new file
            self._gap = True

    def _add(self, step: int, curves: Curves) -> None:
        for name, value in curves.scalars.items():
            self._board.add_scalar(name, value, step)
        for name, histogram in curves.histograms.items():
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
        for name, text in curves.texts.items():
            lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
            self._board.add_text(name, "\n".join(("```", *lines, "```")), step)  # a code block: not read as Markdown

    def close(self) -> None:
        """Flushes the curves to disk, since jobs of several ranks skip the interpreter's shutdown."""
        with suppress(OSError):
            self._board.close()


class WeightsAndBiases:
    """Sends curves to Weights & Biases from W&B's own process: one W&B run per start, all starts of a run folder in one
    group.

    W&B's environment variables choose the server. `WANDB_MODE=offline` writes only to `RUN/wandb`; `wandb sync` uploads
    it later.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """Starts a W&B run.

        Raises:
            ConfigError: W&B does not start, for example without an API key.
        """
        import wandb

        name, config = folder.resolve().name, json.loads((folder / DESCRIPTION).read_text())
        with explained("log_to: got wandb, which does not start", "run `wandb login`, or leave wandb out", wandb.Error):
            self._run = wandb.init(
                project="electra-sampler",
                group=name,
                name=f"{name} from step {step}",
                dir=folder,
                config=config,
                settings=wandb.Settings(console="off", silent=True),
            )
        self._wandb = wandb

    def write(self, step: int, curves: Curves) -> None:
        histograms = {
            name: self._wandb.Histogram(np_histogram=(found.counts, found.edges))
            for name, found in curves.histograms.items()
        }
        texts = {name: self._wandb.Html(f"<p>{html.escape(text)}</p>") for name, text in curves.texts.items()}
        self._run.log({**curves.scalars, **histograms, **texts}, step=step)

    def close(self) -> None:
        """Waits until everything is sent."""
        self._run.finish()


Writer = TensorBoard | WeightsAndBiases
"""A destination of curves: constructed with the run folder and the first step, then written to, then closed."""
WRITERS: dict[str, type[Writer]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""The classes of writers by their names in --log_to."""
