"""Claims about the order of samples and the keyed uniforms."""

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from electra_sampler.foundation.ordering import dealt, permuted, uniforms


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 4097])
def test_an_epoch_visits_every_sequence_once(size: int) -> None:
    assert sorted(permuted(np.arange(size), size, seed=5, epoch=2).tolist()) == list(range(size))


def test_order_depends_only_on_seed_and_epoch() -> None:
    order = permuted(np.arange(500), 500, seed=1, epoch=0)
    assert np.array_equal(order[123:130], permuted(np.arange(123, 130), 500, seed=1, epoch=0))
    assert not np.array_equal(order, permuted(np.arange(500), 500, seed=1, epoch=1))
    assert not np.array_equal(order, permuted(np.arange(500), 500, seed=2, epoch=0))


def test_every_sequence_is_equally_likely_to_come_first() -> None:
    first = [int(permuted(np.zeros(1, dtype=np.int64), 10, seed=0, epoch=epoch)[0]) for epoch in range(4000)]
    assert chisquare(np.bincount(first, minlength=10)).pvalue > 1e-4


def test_uniforms_are_evenly_distributed_and_keyed_by_all_four_parts() -> None:
    sequence, epoch = np.arange(400), np.zeros(400, dtype=np.int64)
    position = np.tile(np.arange(50), (400, 1))
    values = uniforms(3, sequence, epoch, position)
    assert values.dtype == np.float32
    assert kstest(values.ravel(), "uniform").pvalue > 1e-4
    for other in (
        uniforms(4, sequence, epoch, position),
        uniforms(3, sequence + 1, epoch, position),
        uniforms(3, sequence, epoch + 1, position),
        uniforms(3, sequence, epoch, position + 1),
    ):
        assert (other != values).mean() > 0.99


def test_uniforms_never_reach_either_end() -> None:
    index = np.arange(1000)
    values = uniforms(0, index, np.zeros_like(index), np.tile(index, (1000, 1)))
    assert values.min() > 0 and values.max() < 1


def test_a_rows_uniforms_do_not_depend_on_its_neighbors() -> None:
    sequence, epoch, position = np.arange(8), np.arange(8) % 2, np.tile(np.arange(5), (8, 1))
    whole = uniforms(0, sequence, epoch, position)
    assert np.array_equal(whole[3:5], uniforms(0, sequence[3:5], epoch[3:5], position[3:5]))


@pytest.mark.parametrize("shares", [[1], [1, 1], [7, 2, 1], [1, 10**9], [10**9, 1], [5, 4, 3, 2, 1]])
def test_samples_are_divided_in_exact_shares_and_numbered_without_gaps(shares: list[int]) -> None:
    part, number = dealt(np.arange(5000), shares)
    for index, share in enumerate(shares):
        own = number[part == index]
        assert own.tolist() == list(range(len(own)))
        counts = np.cumsum(part == index)
        assert np.abs(counts - np.arange(1, 5001) * share / sum(shares)).max() < len(shares) + 1
    again, numbers = dealt(np.array([4321, 17]), shares)
    assert (again.tolist(), numbers.tolist()) == ([part[4321], part[17]], [number[4321], number[17]])


@pytest.mark.parametrize("last", [2**33 - 2, 2**53 - 2])
def test_the_division_is_exact_after_any_number_of_samples(last: int) -> None:
    shares = [300_000_001, 700_000_000, 73_741_823]
    expected, left = [], last
    for index, share in enumerate(shares):
        own = left * share // sum(shares[index:])
        expected.append(own)
        left -= own
    part, number = dealt(np.array([last]), shares)
    assert number[0] == expected[part[0]]
