"""How sure a difference between two models is: over seeds, and over examples.

Shape letters: R resamples, N examples, K classes.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from foundation.stats import RESAMPLES, bounds, counts_RS, moments, pearson

EXACT_UP_TO = 16
"""Seeds up to which every assignment of signs is tried: 65,536 of them."""
SIGN_SAMPLES = 20_000
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


def bootstrap_interval(pairs: Sequence[tuple[Examples, Examples]], metric: str) -> tuple[float, float]:
    """95% interval of the mean difference, second minus first, over paired resamples of the examples.

    `pairs` holds two runs a seed; all of them are scored on the same resamples.
    """
    all_RN = counts_RS(len(next(iter(pairs[0][0].values()))))
    differences = []
    for count_RN in np.split(all_RN, RESAMPLES // _RESAMPLES_AT_ONCE):
        count_RN = count_RN.astype(np.float64)
        differences.append(
            np.mean([scores(b, metric, count_RN) - scores(a, metric, count_RN) for a, b in pairs], axis=0)
        )
    return bounds(np.concatenate(differences))


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


def _matthews(target: np.ndarray, predicted: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """For any number of classes, as scikit-learn defines it."""
    classes = np.union1d(target, predicted)
    target_RK, predicted_RK = (count_RN @ (values[:, None] == classes) for values in (target, predicted))
    right, total = count_RN @ (target == predicted), count_RN.sum(1)
    covariance = right * total - (target_RK * predicted_RK).sum(1)
    variances = [total**2 - (counts_RK**2).sum(1) for counts_RK in (target_RK, predicted_RK)]
    return _ratio(covariance, np.sqrt(variances[0] * variances[1]))


def _ranks(values: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """The mean rank of each example [R, N] among all, ties shared, when examples are repeated."""
    order = np.argsort(values, kind="stable")
    _, first, group = np.unique(values[order], return_index=True, return_inverse=True)
    held = np.add.reduceat(count_RN[:, order], first, axis=1)
    rank = (np.cumsum(held, axis=1) - held / 2)[:, group]
    ranks = np.empty_like(count_RN)
    ranks[:, order] = rank
    return ranks


def _correlation(x_XN: np.ndarray, y_XN: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """Pearson correlation; 0 where a side is constant."""
    centred = (values_XN - values_XN.mean(-1, keepdims=True) for values_XN in (x_XN, y_XN))  # against cancellation
    return np.nan_to_num(pearson(np.stack([(column_XN * count_RN).sum(-1) for column_XN in moments(*centred)])))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where both are 0, as the metrics themselves."""
    return np.divide(above, below, out=np.zeros(len(below)), where=below != 0)


_METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": lambda target, predicted, count_RN: _ratio(count_RN @ (target == predicted), count_RN.sum(1)),
    "f1": lambda target, predicted, count_RN: _ratio(
        2 * (count_RN @ ((target == 1) & (predicted == 1))), count_RN @ ((target == 1).astype(float) + (predicted == 1))
    ),
    "matthews": _matthews,
    "pearson": _correlation,
    "spearman": lambda target, predicted, count_RN: _correlation(
        _ranks(target, count_RN), _ranks(predicted, count_RN), count_RN
    ),
}
