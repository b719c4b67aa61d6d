"""What is drawn of a run: the names of its curves, in groups, and what draws them: TensorBoard, W&B, MLflow.

A curve is named GROUP/NAME/KIND: `Loss/discriminator_loss/train`; NAME is the one in `metrics.jsonl`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

PROJECT = "electra-sampler"
"""What services with several projects call this one."""
CHARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "Loss": {
        "L_G": ("generator_loss", "mlm_loss"),
        "L_S": ("sampler_loss",),
        "L_D, and of knowing the share of replaced tokens alone": ("discriminator_loss", "discriminator_entropy"),
    },
    "Generator": {"accuracy": ("mlm_accuracy",)},
    "Detection": {
        "accuracy": ("accuracy_masked", "accuracy_unmasked", "accuracy_all"),
        "precision and recall": ("precision", "recall"),
        "AUC": ("auc_all", "auc_masked"),
    },
    "Sampling": {
        "replaced": ("replace_rate", "replaced_share"),
        "entropy": ("entropy",),
    },
    "Ratio": {"p_G over p_S": ("ratio_p1", "ratio_p50", "ratio_p90", "ratio_p99")},
    "Estimate": {"correlation with the actual loss": ("estimate_correlation",)},
    "Optimization": {
        "learning rate": ("learning_rate",),
        "gradient norm": ("gradient_norm",),
        "loss scale": ("loss_scale",),
        "skipped steps and loss spikes": ("skipped", "loss_spikes"),
    },
    "Speed": {
        "tokens a second": ("tokens_per_second",),
        "sequences a second": ("samples_per_second",),
        "TFLOP/s": ("tflops",),
        "share of the peak": ("peak_share",),
    },
    "Memory": {"GPU, GB": ("gpu_memory_gb",)},
    "Ranks": {
        "own seconds a step": ("slowest_rank_seconds", "median_rank_seconds"),
        "slowest": ("slowest_rank",),
    },
    "Data": {
        "epochs": ("epoch", "epoch_of_folder"),
        "tokens of the interval": ("tokens",),
        "tokens so far": ("tokens_so_far",),
        "FLOPs so far": ("flops_so_far",),
    },
}
"""The numbers on each chart of each group."""
GROUPS = {name: group for group, charts in CHARTS.items() for names in charts.values() for name in names}
GROUPS |= {"logit": "Detection", "max_probability": "Sampling", "log_ratio": "Ratio", "example": "Example"}
"""The group of each number, histogram and text."""


class Histogram(NamedTuple):
    """Counts between edges, of which there is one more."""

    edges: Sequence[float]
    counts: Sequence[float]


class Curves(NamedTuple):
    """What is drawn of one moment, by name."""

    scalars: Mapping[str, float] = {}
    histograms: Mapping[str, Histogram] = {}
    texts: Mapping[str, str] = {}


class Writer(Protocol):
    """Where curves go. It is opened with the run's folder and first step, and never ends the run."""

    def __init__(self, folder: Path, step: int) -> None: ...

    def write(self, step: int, curves: Curves) -> None: ...

    def close(self) -> None: ...


def curve_name(kind: str, path: str) -> str:
    """What the metric at this path is called among the curves."""
    return f"{GROUPS[path.split('/')[0]]}/{path}/{kind}"


def curves_of(kind: str, values: Mapping[str, Any]) -> Curves:
    """What is drawn of a record: of shares of equal parts of 0 to 1 a histogram, of all else the numbers."""
    scalars = {name: value for name, value in values.items() if name != "max_probability"}
    histograms = {}
    for path, shares in values.get("max_probability", {}).items():
        if any(shares):
            edges = [place / len(shares) for place in range(len(shares) + 1)]
            histograms[curve_name(kind, f"max_probability/{path}")] = Histogram(edges, shares)
    return Curves({curve_name(kind, path): value for path, value in flat(scalars)}, histograms)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested values, each under its path: `max_probability/p_G/9`."""
    for name, value in values.items():
        if isinstance(value, list):
            value = {str(place): part for place, part in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value
