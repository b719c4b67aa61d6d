"""AUC, correlation and entropy, with bootstrap confidence intervals.

Positions of one sequence are not independent, so whole sequences are resampled. Each statistic is computed from sums
over all sequences; a resample only changes the weight of each sequence. All statistics use the same resamples, so the
difference of two has a paired interval, which is usually narrower than either of theirs.

Shape letters: C columns to sum, S sequences, R resamples, N positions.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

RESAMPLES = 1000
LEVEL = 95.0
"""Confidence level in percent."""
AUC_BINS = 512  # quantiles of the score
ITEMS_AT_ONCE = 1024
"""Items whose counts are converted to fp64 together; 8 MB stay in the cache."""
ROUNDING = 1e-12
"""Spread of a column relative to its sum of squares, up to which the column counts as constant."""

Interval = list[float] | None
"""[value, low, high] as in JSON; None if the value is undefined."""


class ResampledStatistic(NamedTuple):
    """A statistic and its value on each resample."""

    value: float
    """NaN if undefined."""
    resampled_R: np.ndarray

    def minus(self, other: "ResampledStatistic") -> "ResampledStatistic":
        """Returns the difference of two statistics, paired resample by resample."""
        return ResampledStatistic(self.value - other.value, self.resampled_R - other.resampled_R)

    def interval(self) -> Interval:
        """Returns the value and its interval over the resamples on which it is defined; None if undefined."""
        exists_R = self.resampled_R[np.isfinite(self.resampled_R)]
        return [self.value, *bounds(exists_R)] if np.isfinite(self.value) and len(exists_R) else None


def bounds(values_R: np.ndarray) -> tuple[float, float]:
    """Returns the two percentiles that enclose the central `LEVEL` percent of the resampled values."""
    outside = (100 - LEVEL) / 2
    low, high = np.percentile(values_R, [outside, 100 - outside])
    return float(low), float(high)


@lru_cache(maxsize=1)
def counts_RS(number: int) -> np.ndarray:
    """Returns how often each resample holds each of `number` items, identical on every call; fp32, exact here."""
    random = np.random.default_rng(0)
    counts = np.empty((RESAMPLES, number), dtype=np.float32)
    for count_S in counts:
        count_S[:] = np.bincount(random.integers(number, size=number, dtype=np.int32), minlength=number)
    return counts


def sums(sequence_N: np.ndarray, sequences: int, *columns_N: np.ndarray) -> np.ndarray:
    """Sums each column within each sequence, [C, S]; `sequence_N` is the sequence of each position."""
    return np.stack([np.bincount(sequence_N, weights=column, minlength=sequences) for column in columns_N])


def resample(sums_CS: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> ResampledStatistic:
    """Computes `statistic`, which maps [C, any] to [any], on the sums over all sequences and on each resample."""
    counts = counts_RS(sums_CS.shape[1])
    resampled_CR = np.zeros((len(sums_CS), RESAMPLES))
    for start in range(0, counts.shape[1], ITEMS_AT_ONCE):
        part = slice(start, start + ITEMS_AT_ONCE)
        resampled_CR += sums_CS[:, part] @ counts[:, part].T.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):  # undefined values become NaN
        return ResampledStatistic(float(statistic(sums_CS.sum(axis=1, keepdims=True))[0]), statistic(resampled_CR))


def mean(sums_CS: np.ndarray) -> np.ndarray:
    """Returns the mean, from the sum of the values and their number."""
    return sums_CS[0] / sums_CS[1]


def binary_entropy(share: np.ndarray | float) -> np.ndarray:
    """Entropy of a share p, in nats: -p log p - (1 - p) log(1 - p)."""
    p = np.stack((share, 1 - np.asarray(share)))
    return -(p * np.log(np.where(p > 0, p, 1))).sum(0)


def moments(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns the columns 1, a, b, aa, bb, ab, from whose sums `pearson` computes the correlation."""
    return np.ones_like(a), a, b, a * a, b * b, a * b


def pearson(sums_C: np.ndarray) -> np.ndarray:
    """Pearson correlation from the summed `moments`; NaN if either variable is constant."""
    n, a, b, aa, bb, ab = sums_C
    spread_a, spread_b = n * aa - a * a, n * bb - b * b
    varies = (spread_a > ROUNDING * n * aa) & (spread_b > ROUNDING * n * bb)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(varies, (n * ab - a * b) / np.sqrt(spread_a * spread_b), np.nan)


def correlation(a_N: np.ndarray, b_N: np.ndarray, sequence_N: np.ndarray, sequences: int) -> ResampledStatistic:
    """Pearson correlation with its resamples."""
    if len(a_N) < 2 or not np.ptp(a_N) or not np.ptp(b_N):
        return ResampledStatistic(np.nan, np.full(RESAMPLES, np.nan))
    a_N, b_N = (
        (values - values.mean()) / values.std() for values in (a_N, b_N)
    )  # standardized against cancellation in the sums
    return resample(sums(sequence_N, sequences, *moments(a_N, b_N)), pearson)


def auc_of_counts(negative_XB: np.ndarray, positive_XB: np.ndarray) -> np.ndarray:
    """Area under the ROC curve from counts in ascending bins of the score; pairs within a bin count half."""
    below_XB = negative_XB.cumsum(axis=-1) - negative_XB / 2
    with np.errstate(invalid="ignore"):  # NaN without any pair
        return (positive_XB * below_XB).sum(axis=-1) / (positive_XB.sum(axis=-1) * negative_XB.sum(axis=-1))


def auc(score_N: np.ndarray, positive_N: np.ndarray, sequence_N: np.ndarray, sequences: int) -> ResampledStatistic:
    """Area under the ROC curve: the probability that a positive scores above a negative; ties count half.

    The value is exact. The bootstrap resamples use scores binned into `AUC_BINS` quantiles, so pairs within a bin count
    half; they are shifted by the exact value minus the binned one.
    """
    from scipy.stats import rankdata

    positives, negatives = positive_N.sum(), (~positive_N).sum()
    if not positives or not negatives:
        return ResampledStatistic(np.nan, np.full(RESAMPLES, np.nan))
    ranks_N = rankdata(score_N)
    value = (ranks_N[positive_N].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    bins_N = ((ranks_N - 0.5) * AUC_BINS / len(ranks_N)).astype(np.int64)
    cells_N = (sequence_N * 2 + positive_N) * AUC_BINS + bins_N
    counts_SC = np.bincount(cells_N, minlength=sequences * 2 * AUC_BINS).reshape(sequences, 2 * AUC_BINS)
    resampled_RC = (counts_RS(sequences) @ counts_SC.astype(np.float32)).astype(np.float64)
    binned, resampled_R = (
        auc_of_counts(*np.split(counts_XC, 2, axis=-1)) for counts_XC in (counts_SC.sum(axis=0), resampled_RC)
    )
    return ResampledStatistic(float(value), resampled_R + (value - binned))


def placements(score_N: np.ndarray, positive_N: np.ndarray) -> np.ndarray:
    """Returns, for each positive, the share of negatives with a lower score and, for each negative, the share of
    positives with a higher one; ties count half. The mean over either class is the AUC.

    To first order, the AUC of a resample is the sum of both resampled means, less the AUC (DeLong et al., Biometrics
    1988).
    """
    from scipy.stats import rankdata

    ranks_N, placed_N = rankdata(score_N), np.empty(len(score_N))
    for group_N, below in ((positive_N, 0), (~positive_N, 1)):
        others_below = (ranks_N[group_N] - rankdata(score_N[group_N])) / max((~group_N).sum(), 1)
        placed_N[group_N] = np.abs(below - others_below)
    return placed_N
