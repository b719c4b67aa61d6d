"""Claims about the order `windows`: every sequence once per epoch, from one window at a time; nothing stored."""

import numpy as np
import pytest

from pretrain.data.mixture import ShardWindows

SEQUENCES = [7, 0, 3, 11, 1, 5, 9, 4, 2, 8]
SIZE = sum(SEQUENCES)
STARTS = np.cumsum([0, *SEQUENCES])


def shard_of(index_B: np.ndarray) -> np.ndarray:
    return np.searchsorted(STARTS, index_B, side="right") - 1


@pytest.mark.parametrize("window", [1, 3, 4, 10, 99])
def test_an_epoch_reads_each_sequence_once_and_leaves_a_window_only_when_it_is_finished(window: int) -> None:
    windows = ShardWindows(SEQUENCES, window, seed=5)
    for epoch in range(20):
        index_B = windows.sequences(np.arange(SIZE), epoch)
        assert sorted(index_B) == list(range(SIZE))
        read = [*enumerate(shard_of(index_B).tolist())]
        first, last = ({shard: place for place, shard in order} for order in (reversed(read), read))
        for place in range(SIZE):
            unfinished = [shard for shard in first if first[shard] <= place <= last[shard]]
            assert len(unfinished) <= window


@pytest.mark.parametrize("window", [1, 3, 4, 99])
def test_the_shards_of_any_samples_are_those_named_as_needed_and_then_the_next_window(window: int) -> None:
    order = ShardWindows(SEQUENCES, window, seed=2)
    number_B = np.arange(4 * SIZE)
    epoch_B, place_B = np.divmod(number_B, SIZE)
    index_B = np.concatenate([order.sequences(place_B[epoch_B == epoch], epoch) for epoch in range(4)])
    for first in range(0, 3 * SIZE, 7):
        here, following = order.needed(first, first + 5)
        assert set(shard_of(index_B[first : first + 6]).tolist()) <= set(here)
        after = [shard for shard in shard_of(index_B[first + 6 :]).tolist() if shard not in here]
        if following and after:
            assert after[0] in following
        assert not set(here) & set(following)
        assert all(SEQUENCES[shard] for shard in here + following)


def test_a_sample_depends_on_seed_epoch_and_place_only() -> None:
    whole = ShardWindows(SEQUENCES, 3, seed=5).sequences(np.arange(SIZE), 6)
    order = ShardWindows(SEQUENCES, 3, seed=5)
    assert [int(order.sequences(np.array([place]), 6)[0]) for place in range(SIZE)] == whole.tolist()
    orders = {
        tuple(ShardWindows(SEQUENCES, 3, seed).sequences(np.arange(SIZE), epoch)) for seed in (1, 2) for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_the_shards_of_a_window_are_mixed() -> None:
    index_B = ShardWindows([100] * 8, 4, seed=1).sequences(np.arange(400), 0)
    counts = np.histogram2d(np.arange(400) // 100, np.searchsorted(np.unique(index_B // 100), index_B // 100), bins=4)[
        0
    ]
    assert counts.min() >= 12 and counts.max() <= 40, "25 expected of each shard in each quarter of its window"
