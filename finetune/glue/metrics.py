"""GLUE's metrics, by scikit-learn and SciPy: predictions and targets [examples] -> a number in [-1, 1]."""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import scipy.stats
import sklearn.metrics

CONSTANT_SPREAD = 1e-3
"""Predictions closer together than this count as constant: a thousandth of the range of a score."""


def is_constant(predicted: np.ndarray) -> bool:
    """Whether a run has collapsed to one prediction for every example."""
    return bool(np.ptp(predicted) < CONSTANT_SPREAD)


def _correlation(measure: Callable, target: np.ndarray, predicted: np.ndarray) -> float:
    """0 where a side is constant and has no correlation, so that a collapsed run still has a score."""
    if np.ptp(predicted) == 0 or np.ptp(target) == 0:
        return 0.0
    return measure(target, predicted).statistic


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": partial(sklearn.metrics.f1_score, zero_division=0),  # of class 1; 0 when it is never predicted
    "matthews": sklearn.metrics.matthews_corrcoef,
    "pearson": partial(_correlation, scipy.stats.pearsonr),
    "spearman": partial(_correlation, scipy.stats.spearmanr),
}


def score(names: Iterable[str], target: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """The metrics `names`, as plain floats."""
    return {name: float(METRICS[name](target, predicted)) for name in names}
