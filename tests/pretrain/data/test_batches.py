"""Claims about batches: equal samples on any cluster, masks and segments as in the shards, exact global counts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from data_prep.shards import IndexedFile
from pretrain.data.batches import (
    Batch,
    BatchPlan,
    TrainingBatches,
    held_out_batches,
    make_batch,
)
from pretrain.data.shards import Shards, open_held_out


def all_of(shards: Shards, step: int, world_size: int, micro: int) -> Batch:
    """One step's samples from all ranks, in their global order."""
    plans = (BatchPlan(24, micro, world_size, rank) for rank in range(world_size))
    steps = [TrainingBatches(shards, plan, seed=3).step(step) for plan in plans]
    ordered = [ranks[number] for number in range(len(steps[0])) for ranks in steps]
    tensors = [torch.cat(parts) for parts in list(zip(*ordered, strict=True))[:7]]
    counts = [sum(part.masked_count for part in ordered), sum(part.token_count for part in ordered)]
    return Batch(*tensors, *counts)


@pytest.mark.parametrize(("world_size", "micro"), [(1, 8), (2, 12), (2, 4), (3, 4)])
def test_a_step_reads_the_same_samples_and_uniforms_on_any_cluster(world_size: int, micro: int, shards: Shards) -> None:
    whole, spread = all_of(shards, 5, 1, 24), all_of(shards, 5, world_size, micro)
    torch.testing.assert_close(whole[:7], spread[:7], rtol=0, atol=0)
    assert spread[7:] == pytest.approx(whole[7:])


def test_keeping_a_token_is_independent_of_the_draw_there(shards: Shards) -> None:
    """Checked over epochs for enough samples: both numbers are uniform and independent."""
    batches = TrainingBatches(shards, BatchPlan(256, 256, 1, 0), seed=3)
    steps = [batches.step(step)[0] for step in range(40)]
    draw, keep = (
        torch.cat([getattr(batch, name)[batch.masked_valid_BK] for batch in steps]).numpy()
        for name in ("uniforms_BK", "keep_uniforms_BK")
    )
    assert len(draw) > 20_000
    counts = np.histogram2d(draw, keep, bins=10, range=((0, 1), (0, 1)))[0]
    assert chisquare(counts.flatten()).pvalue > 1e-4


def test_an_epoch_reads_every_sequence_once_and_the_next_epoch_in_another_order(shards: Shards) -> None:
    batches = TrainingBatches(shards, BatchPlan(10, 10, 1, 0), seed=0)
    steps = -(-2 * len(shards) // 10)
    index, epoch = (np.concatenate(part) for part in zip(*map(batches.sequences, range(steps)), strict=True))
    first, second = index[epoch == 0], index[epoch == 1]
    assert sorted(first) == sorted(second) == list(range(len(shards)))
    assert not np.array_equal(first, second)


def test_counts_are_those_of_the_whole_step_divided_among_its_micro_batches(shards: Shards) -> None:
    plans = (BatchPlan(24, 4, 2, rank) for rank in range(2))
    parts = [batch for plan in plans for batch in TrainingBatches(shards, plan, seed=3).step(1)]
    counts = [(int(batch.masked_valid_BK.sum()), int(batch.attention_mask_BL.sum())) for batch in parts]
    for batch in parts:
        assert (batch.masked_count, batch.token_count) == pytest.approx(np.sum(counts, axis=0) / 6)


def test_rows_are_the_shards_own_sequences_and_mask_copies(shards: Shards, shards_folder: Path) -> None:
    index, epoch = np.array([0, len(shards) - 1, 7]), np.array([0, 13, 2])
    batch = make_batch(shards, index, epoch, seed=0)
    last = shards.manifest.shards[-1].name
    ids, masks = IndexedFile(shards_folder / last), IndexedFile(shards_folder / f"{last}.mask")
    length = int(batch.attention_mask_BL[1].sum())
    assert batch.input_ids_BL[1, :length].tolist() == ids[len(ids) - 1].tolist()
    copies = shards.manifest.mask_copies
    bitmap = masks[len(masks) - 1].reshape(copies, -1)[13 % copies]
    expected = np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).tolist()
    assert batch.masked_positions_BK[1][batch.masked_valid_BK[1]].tolist() == expected


def test_the_second_segment_starts_after_the_first_separator_and_ends_with_the_sequence(shards: Shards) -> None:
    index = np.arange(len(shards))
    batch = make_batch(shards, index, np.zeros_like(index), seed=0)
    seen_pairs = 0
    for row in range(len(index)):
        ids = batch.input_ids_BL[row].tolist()
        length = int(batch.attention_mask_BL[row].sum())
        first = ids.index(shards.manifest.special_tokens.sep)
        expected = [0] * (first + 1) + [1] * (length - first - 1) + [0] * (len(ids) - length)
        assert batch.token_type_ids_BL[row].tolist() == expected
        seen_pairs += first < length - 1
    assert seen_pairs > 0


def test_steps_come_in_order_from_any_start_and_equal_those_read_separately(shards: Shards) -> None:
    batches = TrainingBatches(shards, BatchPlan(8, 4, 1, 0), seed=0)
    alone = [batches.step(number) for number in range(3, 6)]
    torch.testing.assert_close([*batches.from_step(3, 6)], alone, rtol=0, atol=0)


def test_an_evaluation_reads_the_same_held_out_sequences_on_any_cluster(shards_folder: Path) -> None:
    held_out = open_held_out(shards_folder)
    assert held_out is not None
    alone, first, second = (
        [row for batch in held_out_batches(held_out, 8, plan, 1) for row in batch.input_ids_BL.tolist()]
        for plan in (BatchPlan(8, 4, 1, 0), BatchPlan(8, 4, 2, 0), BatchPlan(8, 4, 2, 1))
    )
    assert sorted(alone) == sorted(first + second)
