"""finetune/tokens/batches.py: every example once an epoch, beside examples of like length, in an order of its own."""

import numpy as np
import pytest

from finetune.tokens.batches import epoch_batches

LENGTHS = np.random.default_rng(0).integers(3, 60, size=1003)


@pytest.mark.parametrize("pool", [1, 7, 1000])
def test_an_epoch_holds_each_example_once_in_full_batches_but_one(pool: int) -> None:
    batches = epoch_batches(LENGTHS, 32, pool, seed=1, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(1003))
    assert sorted(map(len, batches)) == [1003 % 32, *[32] * 31]


def padding(pool: int) -> float:
    """Share of the places in padded batches that hold nothing."""
    batches = epoch_batches(LENGTHS, 32, pool, seed=1, epoch=0)
    return 1 - LENGTHS.sum() / sum(len(batch) * LENGTHS[batch].max() for batch in batches)


def test_pools_save_padding() -> None:
    assert padding(1) > 0.4
    assert padding(8) < 0.1
    assert padding(1000) < 0.03


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    first, again, other_epoch, other_seed = (
        epoch_batches(LENGTHS, 32, 8, seed, epoch) for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert all(map(np.array_equal, first, again))
    for other in (other_epoch, other_seed):
        together = [len(set(a) & set(b)) for a in first for b in other]
        assert max(together) < 32  # other examples meet


def test_short_and_long_batches_come_mixed() -> None:
    means = [LENGTHS[batch].mean() for batch in epoch_batches(LENGTHS, 32, 1000, seed=1, epoch=0)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.5
