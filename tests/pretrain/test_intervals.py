"""Claims about the bootstrap."""

import numpy as np
import pytest

from pretrain.intervals import correlation_interval, mean_interval


def test_independent_values_have_the_normal_interval_of_their_mean() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 4000)
    low, high = mean_interval(values, np.arange(4000))
    half = 1.96 * values.std() / 4000**0.5
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


def test_positions_of_one_sequence_count_as_one() -> None:
    values = np.random.default_rng(0).normal(0.0, 1.0, 200)
    repeated, sequence = np.repeat(values, 20), np.repeat(np.arange(200), 20)
    assert mean_interval(repeated, sequence) == pytest.approx(mean_interval(values, np.arange(200)))


def test_a_correlations_interval_is_fishers_and_lies_around_it() -> None:
    random = np.random.default_rng(1)
    a = random.normal(size=4000)
    b = 0.6 * a + 0.8 * random.normal(size=4000)
    low, high = correlation_interval(a + 100, b * 5, np.arange(4000))
    correlation = np.corrcoef(a, b)[0, 1]
    expected = np.tanh(np.arctanh(correlation) + np.array([-1.96, 1.96]) / 4000**0.5)
    assert (low, high) == pytest.approx(tuple(expected), abs=0.004)
    assert low < correlation < high
