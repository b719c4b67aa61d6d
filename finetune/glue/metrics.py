"""GLUE's metrics, by scikit-learn and SciPy, and predictions in the format of gluebenchmark.com."""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import scipy.stats
import sklearn.metrics

from finetune.glue.tasks import GlueTask

CONSTANT_SPREAD = 1e-3
"""Predictions closer together than this count as constant: a thousandth of the range of a score."""


def _correlation(measure: Callable, target: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the correlation by `measure`, or 0 if a side is constant, so that a collapsed run has a score too."""
    return 0.0 if np.ptp(predicted) == 0 or np.ptp(target) == 0 else measure(target, predicted).statistic


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": partial(sklearn.metrics.f1_score, zero_division=0),  # of class 1
    "matthews": sklearn.metrics.matthews_corrcoef,
    "pearson": partial(_correlation, scipy.stats.pearsonr),
    "spearman": partial(_correlation, scipy.stats.spearmanr),
}
"""Targets and predictions [examples] -> a number in [-1, 1]."""


def score(names: Iterable[str], target: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Computes the named metrics; returns plain floats by name."""
    return {name: float(METRICS[name](target, predicted)) for name in names}


def is_constant(predicted: np.ndarray) -> bool:
    """True if the predictions are, within `CONSTANT_SPREAD`, the same for every example."""
    return bool(np.ptp(predicted) < CONSTANT_SPREAD)


def submission(task: GlueTask, indices: Iterable[str], predicted: np.ndarray) -> str:
    """Returns a submission as TSV: class numbers become GLUE's label names; fractions become scores."""
    labels = [
        task.classes[int(value)] if task.classes else f"{task.max_score * min(max(value, 0.0), 1.0):.3f}"
        for value in predicted.tolist()
    ]
    lines = (f"{index}\t{label}\n" for index, label in zip(indices, labels, strict=True))
    return "".join(("index\tprediction\n", *lines))
