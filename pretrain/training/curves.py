"""The curves of a run: their names and groups, and the interface of the writers (TensorBoard, W&B, MLflow).

A curve is named GROUP/NAME/KIND, for example `Loss/discriminator_loss/train`; NAME is as in `metrics.jsonl`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

PROJECT = "electra-sampler"
"""Project name in services that hold several projects."""
CHARTS = {
    "Loss": ("generator_loss", "sampler_loss", "discriminator_loss discriminator_entropy"),
    "Generator": ("mlm_loss", "mlm_accuracy"),
    "Detection": (
        *("accuracy_masked", "accuracy_unmasked", "accuracy_all", "precision", "recall"),
        *("auc_all", "auc_masked"),
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
GROUPS = {name: group for group, charts in CHARTS.items() for chart in charts for name in chart.split()}
GROUPS |= {"logit": "Detection", "max_probability": "Sampling", "log_ratio": "Ratio", "example": "Example"}
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


class Writer(Protocol):
    """A destination of curves, opened with the run's folder and first step. Once it is open, its failures never end
    the run.
    """

    def __init__(self, folder: Path, step: int) -> None: ...

    def write(self, step: int, curves: Curves) -> None: ...

    def close(self) -> None: ...


def curve_name(kind: str, path: str) -> str:
    """Returns the curve name of the metric at this path."""
    return f"{GROUPS[path.split('/')[0]]}/{path}/{kind}"


def curves_of(kind: str, values: Mapping[str, Any]) -> Curves:
    """Converts a record to curves: `max_probability` (shares over equal parts of [0, 1]) to histograms, the rest to
    scalars.
    """
    scalars = {name: value for name, value in values.items() if name != "max_probability"}
    histograms = {}
    for path, shares in values.get("max_probability", {}).items():
        if any(shares):
            edges = [place / len(shares) for place in range(len(shares) + 1)]
            histograms[curve_name(kind, f"max_probability/{path}")] = Histogram(edges, shares)
    return Curves({curve_name(kind, path): value for path, value in flat(scalars)}, histograms)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers of nested values, each with its path, such as `max_probability/p_G/9`."""
    for name, value in values.items():
        if isinstance(value, list):
            value = {str(place): part for place, part in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value
