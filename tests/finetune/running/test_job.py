"""Batches of fine-tuning: every example once per epoch, in batches with masked padding that the ranks divide."""

import numpy as np
import pytest
import torch

from finetune.running.job import Features, collate, epoch_batches, shares
from pretrain.job.processes import World

CPU = torch.device("cpu")


FEATURES = Features([[2, 9, 3], [2, 8, 7, 6, 3]], [[0, 0, 0], [0, 0, 0, 1, 1]], [1.0, 0.0])


def test_a_batch_is_padded_to_its_longest_sequence_and_the_padding_masked() -> None:
    batch = collate(FEATURES, np.array([1, 0]), pad_id=4, device=CPU)
    assert batch.input_ids_BL.tolist() == [[2, 8, 7, 6, 3], [2, 9, 3, 4, 4]]
    assert batch.attention_mask_BL.tolist() == [[True] * 5, [True, True, True, False, False]]
    assert batch.token_type_ids_BL.tolist() == [[0, 0, 0, 1, 1], [0] * 5]
    assert batch.target_B.tolist() == [0.0, 1.0]
    assert batch.weight_B.tolist() == [1.0, 1.0]


def test_an_empty_share_is_a_batch_with_weight_zero() -> None:
    batch = collate(FEATURES, [], pad_id=4, device=CPU)
    assert (batch.input_ids_BL.shape, batch.weight_B.tolist()) == ((1, 3), [0.0])


def test_the_ranks_divide_the_examples_into_equally_many_batches_of_similar_lengths() -> None:
    features = Features([[0] * (1 + number * 7 % 5) for number in range(203)], [[]] * 203, [0.0] * 203)
    parts = [list(shares(features, World(rank, 3, CPU), 8)) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    assert sorted(np.concatenate([index for part in parts for index in part])) == list(range(203))
    spread = [len({len(features.input_ids[i]) for i in index}) for part in parts for index in part]
    assert max(spread) <= 2


def test_several_targets_per_example_make_a_matrix() -> None:
    batch = collate(FEATURES._replace(targets=[(1, 2, False), (0, 0, True)]), [0, 1], pad_id=4, device=CPU)
    assert batch.target_B.tolist() == [[1, 2, 0], [0, 0, 1]]


LENGTHS = np.random.default_rng(0).integers(3, 60, size=1003)


@pytest.mark.parametrize("pool", [1, 7, 1000])
def test_an_epoch_has_each_example_once_and_all_batches_but_one_are_full(pool: int) -> None:
    batches = epoch_batches(LENGTHS.tolist(), 32, pool, seed=1, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(1003))
    assert sorted(map(len, batches)) == [1003 % 32, *[32] * 31]


def padding(pool: int) -> float:
    """Fraction of positions that are padding."""
    batches = epoch_batches(LENGTHS.tolist(), 32, pool, seed=1, epoch=0)
    return 1 - LENGTHS.sum() / sum(len(batch) * LENGTHS[batch].max() for batch in batches)


def test_pools_reduce_padding() -> None:
    assert padding(1) > 0.4
    assert padding(8) < 0.1
    assert padding(1000) < 0.03


def test_the_order_depends_only_on_seed_and_epoch() -> None:
    first, again, other_epoch, other_seed = (
        epoch_batches(LENGTHS.tolist(), 32, 8, seed, epoch) for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert all(map(np.array_equal, first, again))
    for other in (other_epoch, other_seed):
        together = [len(set(a) & set(b)) for a in first for b in other]
        assert max(together) < 32  # batches have other examples in other epochs


def test_short_and_long_batches_are_mixed() -> None:
    means = [LENGTHS[batch].mean() for batch in epoch_batches(LENGTHS.tolist(), 32, 1000, seed=1, epoch=0)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.5
