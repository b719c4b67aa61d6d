"""Claims about the bootstrap, AUC and entropy."""

import math
import time

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from electra_sampler.foundation.stats import (
    ResampledStatistic,
    auc,
    binary_entropy,
    correlation,
    mean,
    placements,
    resample,
    sums,
)


def mean_of(values: np.ndarray, sequence: np.ndarray) -> ResampledStatistic:
    return resample(sums(sequence, int(sequence.max()) + 1, values, np.ones(len(values))), mean)


def interval(found: ResampledStatistic) -> list[float]:
    result = found.interval()
    assert result is not None
    return result


def test_independent_values_have_the_normal_interval_of_their_mean() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 4000)
    value, low, high = interval(mean_of(values, np.arange(4000)))
    half = 1.96 * values.std() / 4000**0.5
    assert value == pytest.approx(values.mean())
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


def test_positions_of_one_sequence_count_as_one_observation() -> None:
    values = np.random.default_rng(0).normal(0.0, 1.0, 200)
    repeated, sequence = np.repeat(values, 20), np.repeat(np.arange(200), 20)
    assert interval(mean_of(repeated, sequence)) == pytest.approx(interval(mean_of(values, np.arange(200))))


def test_a_correlations_interval_is_fishers_and_contains_it() -> None:
    random = np.random.default_rng(1)
    a = random.normal(size=4000)
    b = 0.6 * a + 0.8 * random.normal(size=4000)
    value, low, high = interval(correlation(a + 100, b * 5, np.arange(4000), 4000))
    assert value == pytest.approx(np.corrcoef(a, b)[0, 1])
    expected = np.tanh(np.arctanh(value) + np.array([-1.96, 1.96]) / 4000**0.5)
    assert (low, high) == pytest.approx(tuple(expected), abs=0.004)


def test_a_difference_is_paired_so_that_common_variation_does_not_widen_it() -> None:
    random = np.random.default_rng(2)
    common, sequence = random.normal(0, 1.0, 2000), np.arange(2000)
    better, worse = (mean_of(common + random.normal(shift, 0.1, 2000), sequence) for shift in (0.02, 0.0))
    difference, low, high = interval(better.minus(worse))
    assert difference == pytest.approx(better.value - worse.value)
    assert high - low < 0.25 * (interval(better)[2] - interval(better)[1])
    assert low > 0  # which two separate intervals would not show
    assert interval(better)[1] < interval(worse)[2]


def scored(seed: int, sequences: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, a tenth of them positives with higher ones, and sequences that differ in their mean score."""
    random = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(sequences), length)
    positive = random.random(sequences * length) < 0.1
    level = random.normal(0, 0.5, sequences)[sequence]
    return random.normal(0, 1, len(sequence)) + level * positive + positive, positive, sequence


def test_auc_is_the_fraction_of_correctly_ordered_pairs_with_ties_as_halves() -> None:
    score, positive, sequence = scored(0, 50, 20)
    assert auc(score, positive, sequence, 50).value == pytest.approx(roc_auc_score(positive, score))
    rounded = score.round()
    assert auc(rounded, positive, sequence, 50).value == pytest.approx(roc_auc_score(positive, rounded))


def test_resamples_of_auc_draw_whole_sequences() -> None:
    score, positive, sequence = scored(1, 200, 30)
    value, low, high = interval(auc(score, positive, sequence, 200))
    random, values = np.random.default_rng(5), []
    scores_SL, positive_SL = score.reshape(200, 30), positive.reshape(200, 30)
    for _ in range(300):
        drawn = random.integers(200, size=200)
        values.append(roc_auc_score(positive_SL[drawn].ravel(), scores_SL[drawn].ravel()))
    expected = np.percentile(values, [2.5, 97.5])
    assert (low, high) == pytest.approx(tuple(expected), abs=0.2 * (expected[1] - expected[0]))
    assert low < value < high


def test_binary_entropy_is_log_2_at_one_half_and_zero_at_the_ends() -> None:
    assert binary_entropy(0.5) == pytest.approx(math.log(2))
    assert binary_entropy(0.0) == binary_entropy(1.0) == 0
    assert binary_entropy(np.array([0.15, 0.85])) == pytest.approx(0.4227, abs=1e-4)


def test_undefined_values_have_no_interval() -> None:
    sequence = np.arange(5)
    assert auc(np.arange(5.0), np.zeros(5, dtype=bool), sequence, 5).interval() is None
    assert correlation(np.ones(5), np.arange(5.0), sequence, 5).interval() is None
    assert resample(np.zeros((2, 5)), mean).interval() is None


def test_a_thousand_resamples_of_half_a_million_positions_take_seconds() -> None:
    score, positive, sequence = scored(2, 4096, 128)
    started = time.process_time()
    auc(score, positive, sequence, 4096)
    assert time.process_time() - started < 10  # a plain loop over resamples takes minutes


def test_placements_average_to_the_auc_over_either_class_and_ties_count_half() -> None:
    random = np.random.default_rng(3)
    score, positive = random.integers(0, 6, 300).astype(float), random.random(300) < 0.3
    placed = placements(score, positive)
    expected = roc_auc_score(positive, score)
    assert (placed[positive].mean(), placed[~positive].mean()) == pytest.approx((expected, expected))
    first = score[np.argmax(positive)]
    others = score[~positive]
    assert placed[np.argmax(positive)] == pytest.approx(((others < first) + 0.5 * (others == first)).mean())
