"""How sure a difference between two models is: over seeds, and over examples.

Shape letters: R resamples, N examples, K classes.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

EXACT_UP_TO = 16
"""Seeds up to which every assignment of signs is tried: 65,536 of them."""
SIGN_SAMPLES = 20_000
RESAMPLES = 1_000
_RESAMPLES_AT_ONCE = 100
"""Bounds the memory: 100 resamples of QQP's 40,430 dev examples are 32 MB."""

Examples = Mapping[str, Any]
"""What a run's `examples.json` holds of a dev split: `predicted` and `target`, or scores by metric."""


def permutation_p(differences: Sequence[float]) -> float:
    """Two-sided p of a paired permutation test: how often random signs give a mean as far from 0.

    With five seeds it can be no smaller than 2/32 = .0625.
    """
    difference_S = np.asarray(differences)
    if len(difference_S) <= EXACT_UP_TO:
        signs = np.array(list(itertools.product((1, -1), repeat=len(difference_S))))
    else:
        signs = np.random.default_rng(0).choice((1, -1), size=(SIGN_SAMPLES, len(difference_S)))
        signs[0] = 1
    tolerance = 1e-12 * np.abs(difference_S).sum()  # sums in another order differ in the last digit
    return float(np.mean(np.abs(signs @ difference_S) >= abs(difference_S.sum()) - tolerance))


def bootstrap_interval(pairs: Sequence[tuple[Examples, Examples]], metric: str, seed: int = 0) -> tuple[float, float]:
    """95% interval of the mean difference, second minus first, over paired resamples of the examples.

    `pairs` holds two runs a seed; all of them are scored on the same resamples.
    """
    size = examples_count(pairs[0][0])
    random = np.random.default_rng(seed)
    differences = []
    for _ in range(0, RESAMPLES, _RESAMPLES_AT_ONCE):
        drawn = [np.bincount(random.integers(size, size=size), minlength=size) for _ in range(_RESAMPLES_AT_ONCE)]
        count_RN = np.array(drawn, dtype=np.float64)
        differences.append(
            np.mean([scores(b, metric, count_RN) - scores(a, metric, count_RN) for a, b in pairs], axis=0)
        )
    low, high = np.percentile(np.concatenate(differences), (2.5, 97.5))
    return float(low), float(high)


def examples_count(examples: Examples) -> int:
    """How many examples a split has."""
    return len(next(iter(examples.values())))


def has_examples(examples: Examples, metric: str) -> bool:
    """Whether a metric can be had from what was kept: not the best threshold's, which is a choice of its own."""
    return "predicted" in examples or (metric.rpartition("_")[2] in examples and not metric.startswith("best"))


def scores(examples: Examples, metric: str, count_RN: np.ndarray) -> np.ndarray:
    """The metric [R] when each example counts as often as `count_RN` says."""
    if "predicted" in examples:
        return _METRICS[metric](np.asarray(examples["target"]), np.asarray(examples["predicted"]), count_RN)
    part, _, name = metric.rpartition("_")
    answerable = np.asarray(examples["answerable"])
    chosen = {"": np.ones(len(answerable), bool), "HasAns": answerable, "NoAns": ~answerable}[part]
    return _ratio(count_RN @ (np.asarray(examples[name]) * chosen), count_RN @ chosen)


def _accuracy(target: np.ndarray, predicted: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    return _ratio(count_RN @ (target == predicted), count_RN.sum(1))


def _f1(target: np.ndarray, predicted: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    both, either = (target == 1) & (predicted == 1), (target == 1).astype(float) + (predicted == 1)
    return _ratio(2 * (count_RN @ both), count_RN @ either)


def _matthews(target: np.ndarray, predicted: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """For any number of classes, as scikit-learn defines it."""
    classes = np.union1d(target, predicted)
    target_RK, predicted_RK = (count_RN @ (values[:, None] == classes) for values in (target, predicted))
    right, total = count_RN @ (target == predicted), count_RN.sum(1)
    covariance = right * total - (target_RK * predicted_RK).sum(1)
    variances = [total**2 - (counts_RK**2).sum(1) for counts_RK in (target_RK, predicted_RK)]
    return _ratio(covariance, np.sqrt(variances[0] * variances[1]))


def _pearson(target: np.ndarray, predicted: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    return _correlation(np.broadcast_to(target, count_RN.shape), np.broadcast_to(predicted, count_RN.shape), count_RN)


def _spearman(target: np.ndarray, predicted: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    return _correlation(_ranks(target, count_RN), _ranks(predicted, count_RN), count_RN)


def _ranks(values: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """The mean rank of each example [R, N] among all, ties shared, when examples are repeated."""
    order = np.argsort(values, kind="stable")
    _, first, group = np.unique(values[order], return_index=True, return_inverse=True)
    held = np.add.reduceat(count_RN[:, order], first, axis=1)
    rank = (np.cumsum(held, axis=1) - held / 2)[:, group]
    ranks = np.empty_like(count_RN)
    ranks[:, order] = rank
    return ranks


def _correlation(x_RN: np.ndarray, y_RN: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """Pearson's; 0 where a side is constant."""
    total = count_RN.sum(1, keepdims=True)
    x_RN, y_RN = (v_RN - (v_RN * count_RN).sum(1, keepdims=True) / total for v_RN in (x_RN, y_RN))
    covariance = (count_RN * x_RN * y_RN).sum(1)
    return _ratio(covariance, np.sqrt((count_RN * x_RN**2).sum(1) * (count_RN * y_RN**2).sum(1)))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where both are 0, as the metrics themselves."""
    return np.divide(above, below, out=np.zeros(len(below)), where=below != 0)


_METRICS = {"accuracy": _accuracy, "f1": _f1, "matthews": _matthews, "pearson": _pearson, "spearman": _spearman}
