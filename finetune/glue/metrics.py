"""GLUE's metrics, by scikit-learn and SciPy: predictions and targets [examples] -> a number in [-1, 1]."""

from collections.abc import Callable, Iterable

import numpy as np
import scipy.stats
import sklearn.metrics

CONSTANT_SPREAD = 1e-3
"""Predictions closer together than this count as constant: a thousandth of the range of a score."""


def is_constant(predicted: np.ndarray) -> bool:
    """Whether a run has collapsed to one prediction for every example."""
    return bool(np.ptp(predicted) < CONSTANT_SPREAD)


def accuracy(target: np.ndarray, predicted: np.ndarray) -> float:
    return sklearn.metrics.accuracy_score(target, predicted)


def f1(target: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1; 0 when it is never predicted."""
    return sklearn.metrics.f1_score(target, predicted, zero_division=0)


def matthews(target: np.ndarray, predicted: np.ndarray) -> float:
    return sklearn.metrics.matthews_corrcoef(target, predicted)


def pearson(target: np.ndarray, predicted: np.ndarray) -> float:
    return _correlation(scipy.stats.pearsonr, target, predicted)


def spearman(target: np.ndarray, predicted: np.ndarray) -> float:
    return _correlation(scipy.stats.spearmanr, target, predicted)


def _correlation(measure: Callable, target: np.ndarray, predicted: np.ndarray) -> float:
    """0 where a side is constant and has no correlation, so that a collapsed run still has a score."""
    if np.ptp(predicted) == 0 or np.ptp(target) == 0:
        return 0.0
    return measure(target, predicted).statistic


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    function.__name__: function for function in (accuracy, f1, matthews, pearson, spearman)
}


def score(names: Iterable[str], target: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """The metrics `names`, as plain floats."""
    return {name: float(METRICS[name](target, predicted)) for name in names}
