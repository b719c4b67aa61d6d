"""Confidence intervals by bootstrap over sequences: positions of one sequence are not independent.

A number is computed from sums over all sequences; a resample of the sequences only changes how often each of them
counts. Every number is computed on the same resamples, so the difference of two has an interval of its own: paired,
hence narrower than theirs.

Shape letters: C columns to sum, S sequences, R resamples, N positions.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

RESAMPLES = 1000
LEVEL = 95.0
"""Percent."""
AUC_BINS = 512

Interval = list[float] | None
"""[value, low, high] as it stands in JSON; `None` where the value does not exist."""


class Estimate(NamedTuple):
    """A number and what it is on each resample."""

    value: float
    """Not a number where it does not exist."""
    resampled_R: np.ndarray

    def minus(self, other: "Estimate") -> "Estimate":
        """The difference, resample by resample."""
        return Estimate(self.value - other.value, self.resampled_R - other.resampled_R)

    def interval(self) -> Interval:
        """Of the resamples on which the number exists."""
        exists_R = self.resampled_R[np.isfinite(self.resampled_R)]
        if not np.isfinite(self.value) or not len(exists_R):
            return None
        outside = (100 - LEVEL) / 2
        low, high = np.percentile(exists_R, [outside, 100 - outside])
        return [self.value, float(low), float(high)]


def sums(sequence_N: np.ndarray, sequences: int, *columns_N: np.ndarray) -> np.ndarray:
    """Each column summed within each of the `sequences`, [C, S]; `sequence` says which one a position is in."""
    return np.stack([np.bincount(sequence_N, weights=column, minlength=sequences) for column in columns_N])


def estimate(sums_CS: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """`statistic` of the sums over sequences: it is given [C, any] and answers [any]."""
    with np.errstate(invalid="ignore", divide="ignore"):  # what does not exist is not a number
        value = float(statistic(sums_CS.sum(axis=1, keepdims=True))[0])
        return Estimate(value, statistic(sums_CS @ _counts_RS(sums_CS.shape[1]).T))


def mean(sums_CS: np.ndarray) -> np.ndarray:
    """Of the sum of values and their number."""
    return sums_CS[0] / sums_CS[1]


def correlation(a_N: np.ndarray, b_N: np.ndarray, sequence_N: np.ndarray, sequences: int) -> Estimate:
    """Pearson's."""
    if len(a_N) < 2 or not np.ptp(a_N) or not np.ptp(b_N):
        return Estimate(np.nan, np.full(RESAMPLES, np.nan))
    a_N, b_N = ((values - values.mean()) / values.std() for values in (a_N, b_N))  # against cancellation in the sums
    columns = (np.ones(len(a_N)), a_N, b_N, a_N * a_N, b_N * b_N, a_N * b_N)
    return estimate(sums(sequence_N, sequences, *columns), _pearson)


def _pearson(sums_CS: np.ndarray) -> np.ndarray:
    n, a, b, aa, bb, ab = sums_CS
    return (n * ab - a * b) / np.sqrt((n * aa - a**2) * (n * bb - b**2))


def auc(score_N: np.ndarray, positive_N: np.ndarray, sequence_N: np.ndarray, sequences: int) -> Estimate:
    """Area under the ROC curve: how often a positive scores above a negative, ties counting half.

    The value is exact. The resamples know scores by `AUC_BINS` quantiles, and ties within those count half too; what
    this changes in the value is taken off them.
    """
    from scipy.stats import rankdata

    positives, negatives = positive_N.sum(), (~positive_N).sum()
    if not positives or not negatives:
        return Estimate(np.nan, np.full(RESAMPLES, np.nan))
    ranks_N = rankdata(score_N)
    value = (ranks_N[positive_N].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    bins_N = ((ranks_N - 0.5) * AUC_BINS / len(ranks_N)).astype(np.int64)
    cells_N = (sequence_N * 2 + positive_N) * AUC_BINS + bins_N
    counts_SC = np.bincount(cells_N, minlength=sequences * 2 * AUC_BINS).reshape(sequences, 2 * AUC_BINS)
    binned = float(_auc(counts_SC.sum(axis=0, keepdims=True))[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled_R = _auc(_counts_RS(sequences) @ counts_SC.astype(np.float32))
    return Estimate(float(value), resampled_R + (value - binned))


def _auc(counts_XC: np.ndarray) -> np.ndarray:
    negative_XC, positive_XC = np.split(counts_XC.astype(np.float64), 2, axis=1)
    below_XC = negative_XC.cumsum(axis=1) - negative_XC / 2
    return (positive_XC * below_XC).sum(axis=1) / positive_XC.sum(axis=1) / negative_XC.sum(axis=1)


@lru_cache(maxsize=1)
def _counts_RS(sequences: int) -> np.ndarray:
    """How often each sequence is in each resample; the same whenever there are as many. fp32: exact, and fast."""
    random = np.random.default_rng(0)
    drawn = random.integers(sequences, size=(RESAMPLES, sequences), dtype=np.int32)
    return np.stack([np.bincount(row, minlength=sequences) for row in drawn]).astype(np.float32)
