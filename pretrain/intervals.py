"""Confidence intervals by bootstrap over sequences: positions of one sequence are not independent."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000
LEVEL = 95.0
"""Percent."""

Interval = tuple[float, float]


def mean_interval(values: np.ndarray, sequence: np.ndarray) -> Interval:
    """Of the mean of `values`; `sequence` says which sequence each belongs to."""
    total, count = _resampled_sums((values, np.ones(len(values))), sequence)
    return _middle(total / count)


def correlation_interval(a: np.ndarray, b: np.ndarray, sequence: np.ndarray) -> Interval:
    """Of Pearson's correlation of `a` and `b`."""
    a, b = a - a.mean(), b - b.mean()  # against cancellation in the sums
    ones = np.ones(len(a))
    n, sum_a, sum_b, aa, bb, ab = _resampled_sums((ones, a, b, a * a, b * b, a * b), sequence)
    covariance, variance_a, variance_b = n * ab - sum_a * sum_b, n * aa - sum_a**2, n * bb - sum_b**2
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample without variation has no correlation
        return _middle(covariance / np.sqrt(variance_a * variance_b))


def _resampled_sums(columns: Sequence[np.ndarray], sequence: np.ndarray) -> np.ndarray:
    """Each column's sum over each resample of the sequences, [columns, RESAMPLES]; the same resamples for all."""
    _, group = np.unique(sequence, return_inverse=True)
    sums = np.stack([np.bincount(group, weights=column) for column in columns])
    size = sums.shape[1]
    counts = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), RESAMPLES)
    return sums @ counts.T


def _middle(values: np.ndarray) -> Interval:
    low, high = np.nanpercentile(values, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)
