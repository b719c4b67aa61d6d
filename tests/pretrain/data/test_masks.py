"""Claims about the masks of a run: exact numbers at any rate, equal chances for tokens, and the keyed choice."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.masking import MASK_RATE, mask_size
from electra_sampler.foundation.ordering import key_of, uniforms
from pretrain.data.batches import WEIGHTS_EVERY, Batch, BatchPlan, TrainingBatches, make_batch
from pretrain.data.masks import SUBSET, TIE, read_masked
from pretrain.data.shards import Shards, open_shards

RATES = (0.05, 0.1, 0.3, 0.4, 0.6)
LENGTHS = [14, 22]
"""Of the sequences in `alike`."""


@pytest.fixture(scope="module")
def alike(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """8,000 times each of two texts; five copies of the longer one's masks are one shuffle, four of the other's."""
    folder = tmp_path_factory.mktemp("alike")
    (folder / "long.txt").write_text(
        "a name of the class is the value of the object and the function, and so on.\n\n" * 8_000
    )
    (folder / "short.txt").write_text("the statements of a class and the name of an object\n\n" * 8_000)
    options = BuildOptions(
        input=(folder / "long.txt", folder / "short.txt"),
        output=folder / "shards",
        vocab=str(shards_folder / "tokenizer"),
        seq_length=32,
        mask_copies=12,
        one_segment=True,
        held_out=0,
        workers=1,
    )
    build_shards(options)
    return open_shards(folder / "shards")


def ordinary(shards: Shards, ids_BL: np.ndarray) -> np.ndarray:
    special = shards.manifest.special_tokens
    return ~np.isin(ids_BL, (special.pad, special.cls, special.sep, special.mask))


@pytest.mark.parametrize("rate", (MASK_RATE, *RATES))
def test_exactly_the_rate_rounded_up_is_masked_and_never_a_special_token(rate: float, shards: Shards) -> None:
    index = np.arange(len(shards))
    for epoch in range(3):
        ids_BL, masked_BL, lengths_B = read_masked(shards, index, np.full_like(index, epoch), 0, rate)
        thousandths = [-(-round(1000 * rate) * int(length) // 1000) for length in lengths_B]
        assert masked_BL.sum(1).tolist() == np.minimum(thousandths, np.maximum(lengths_B - 3, 1)).tolist()
        assert not (masked_BL & ~ordinary(shards, ids_BL)).any()


@pytest.mark.parametrize("rate", (*RATES, 0.9))
def test_every_token_that_may_be_masked_has_the_same_chance(rate: float, alike: Shards) -> None:
    """Each count is binomial, since the masks of different sequences are independent."""
    every, lengths_B = np.arange(len(alike)), alike.lengths(np.arange(len(alike)))
    for length in LENGTHS:
        for epoch in (0, 5, 7):  # copy 5 is of a shuffle that was cut off
            index = every[lengths_B == length]
            assert len(index) > 7_000
            ids_BL, masked_BL, _ = read_masked(alike, index, np.full_like(index, epoch), 0, rate)
            may_be = ordinary(alike, ids_BL[:1])[0]
            chance = float(mask_size(length, rate)) / may_be.sum()
            deviation = (len(index) * chance * (1 - chance)) ** 0.5
            counts = masked_BL.sum(0)
            assert (counts[~may_be] == 0).all()
            assert np.abs(counts[may_be] - len(index) * chance).max() <= 4.5 * deviation


def test_a_smaller_mask_is_another_subset_in_another_epoch(alike: Shards) -> None:
    index = np.arange(200)
    first, later = (read_masked(alike, index, np.full_like(index, epoch), 0, 0.05)[1] for epoch in (0, 12))
    assert (first != later).any(1).mean() > 0.5


@pytest.mark.parametrize("rate", RATES)
def test_a_larger_mask_is_made_of_copies_of_one_shuffle_and_a_smaller_one_is_part_of_a_copy(
    rate: float, alike: Shards
) -> None:
    """Of 20 tokens, five copies of 4 are one shuffle and the sixth is another; then come the next six."""
    index = np.flatnonzero(alike.lengths(np.arange(len(alike))) == 22)[:200]
    copies_BCL = np.stack([alike.read(index, np.full_like(index, copy))[1] for copy in range(12)], axis=1)
    for epoch in range(12):
        _, masked_BL, lengths_B = read_masked(alike, index, np.full_like(index, epoch), 0, rate)
        held_BC = (masked_BL[:, None] & copies_BCL).sum(-1)
        size, first = int(mask_size(lengths_B[0], rate)), epoch - epoch % 6
        together = [first + 5] if epoch % 6 == 5 else [*range(first, first + 5)]
        whole, rest = divmod(size, 4)
        turn = together[together.index(epoch) :] + together[: together.index(epoch)]
        assert (held_BC[:, turn[:whole]] == 4).all()
        if len(turn) > whole:
            assert (held_BC[:, turn[whole]] == rest).all()


def weights_of(shards: Shards) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1000, shards.manifest.vocab_size)


@pytest.mark.parametrize("rate", (MASK_RATE, 0.1, 0.3))
def test_the_chosen_mask_is_the_heaviest_of_those_that_begin_with_any_copy(rate: float, shards: Shards) -> None:
    copies, weight_V = shards.manifest.mask_copies, weights_of(shards)
    index = np.arange(len(shards))
    epoch = 20 + index % 7
    ids_BL, masked_BL, lengths = read_masked(shards, index, epoch, 3, rate, weight_V)
    copies_CBL = shards.read(index, np.repeat(np.arange(copies)[:, None], len(index), axis=1))[1]
    may_be_BL = ordinary(shards, ids_BL)
    ties = uniforms(key_of(3, TIE), index, epoch, np.arange(copies)[None])
    order = uniforms(key_of(3, SUBSET), index, epoch, np.arange(ids_BL.shape[1])[None])
    chosen = []
    for row, length in enumerate(lengths):
        ids, may_be = ids_BL[row, :length].tolist(), np.flatnonzero(may_be_BL[row]).tolist()
        masks = [np.flatnonzero(mask).tolist() for mask in copies_CBL[:, row]]
        candidates = [one_mask(ids, masks, may_be, start, order[row].tolist(), rate) for start in range(copies)]
        weights = [sum(int(weight_V[ids[position]]) for position in mask) for mask in candidates]
        best = max(range(copies), key=lambda copy: (weights[copy], ties[row, copy]))
        assert np.flatnonzero(masked_BL[row]).tolist() == candidates[best]
        chosen.append(best)
    assert set(chosen) == set(range(copies))


def one_mask(
    ids: list[int], copies: list[list[int]], may_be: list[int], start: int, order: list[float], rate: float
) -> list[int]:
    """The positions of a sequence's mask that begins with copy `start`, token by token."""
    size, wanted = len(copies[0]), min(-(-round(1000 * rate) * len(ids) // 1000), max(len(ids) - 3, 1))
    together = min(6, len(may_be) // size)
    first = start - start % 6 + start % 6 // together * together
    last = min(first + together, start - start % 6 + 6, len(copies))
    turn = [copies[copy] for copy in (*range(start, last), *range(first, start))]
    left = [position for position in may_be if not any(position in copy for copy in turn)]
    in_order = [position for part in (*turn, left) for position in sorted(part, key=lambda place: order[place])]
    return sorted(in_order[:wanted])


def test_equal_masks_are_chosen_with_equal_chances_by_seed_sequence_and_epoch(shards: Shards) -> None:
    """As in a run that has seen no loss: all weights are equal."""
    copies, index = shards.manifest.mask_copies, np.arange(len(shards))
    weight_V, counts = np.ones(shards.manifest.vocab_size, np.int64), np.zeros(copies)
    for epoch in range(10):
        _, masked_BL, _ = read_masked(shards, index, np.full_like(index, epoch), 0, MASK_RATE, weight_V)
        _, copies_CBL, _ = shards.read(index, np.repeat(np.arange(copies)[:, None], len(index), axis=1))
        is_it_CB = (copies_CBL == masked_BL).all(-1)
        counts += is_it_CB[:, is_it_CB.sum(0) == 1].sum(1)  # two copies may be equal
    mean = counts.sum() / copies
    assert mean > 0.9 * len(index)
    assert np.abs(counts - mean).max() < 4.5 * mean**0.5
    again, other = (read_masked(shards, index, index * 0, seed, MASK_RATE, weight_V)[1] for seed in (0, 1))
    assert (again != other).any()


@pytest.mark.parametrize(("rate", "chooses"), [(0.3, False), (0.05, False), (MASK_RATE, True), (0.3, True)])
def test_a_steps_masks_are_the_same_on_any_cluster_and_counted_exactly(
    rate: float, chooses: bool, shards: Shards
) -> None:
    steps: list[list[Batch]] = []
    for world_size, micro in ((1, 24), (2, 4), (3, 8)):
        ranks = []
        for rank in range(world_size):
            batches = TrainingBatches(shards, BatchPlan(24, micro, world_size, rank), 3, rate)
            batches.weight_V = weights_of(shards) if chooses else None
            ranks.append(batches.step(5))
        steps.append([batch for micro_step in zip(*ranks, strict=True) for batch in micro_step])
    whole, *spread = [torch.cat([batch.masked_BL for batch in step]) for step in steps]
    assert all(torch.equal(part, whole) for part in spread)
    for step in steps:
        assert sum(batch.masked_count for batch in step) == pytest.approx(int(whole.sum()))
        assert step[0].masked_positions_BK.shape[1] == mask_size(32, rate)


def test_the_defaults_are_the_copies_in_turn(shards: Shards) -> None:
    index = np.arange(len(shards))
    epoch = index % 23
    plain, named = make_batch(shards, index, epoch, 0), make_batch(shards, index, epoch, 0, None, MASK_RATE, None)
    torch.testing.assert_close(plain, named, rtol=0, atol=0)
    assert np.array_equal(plain.masked_BL.bool().numpy(), shards.read(index, epoch % 10)[1])


def test_no_step_is_read_before_its_weights_are_known(shards: Shards) -> None:
    """The reader works a step ahead, and the weights change just before a multiple of `WEIGHTS_EVERY`."""
    batches = TrainingBatches(shards, BatchPlan(8, 8, 1, 0), seed=0)
    old, new = weights_of(shards), weights_of(shards)[::-1].copy()
    batches.weight_V, read = old, []
    for step, (batch,) in enumerate(batches.from_step(WEIGHTS_EVERY - 3, WEIGHTS_EVERY + 3), WEIGHTS_EVERY - 3):
        read.append(batch.masked_BL)
        if step == WEIGHTS_EVERY - 1:
            time.sleep(0.5)  # long enough for a reader that is a step ahead
            batches.weight_V = new
    for weight_V, steps in ((old, range(3)), (new, range(3, 6))):
        batches.weight_V = weight_V
        for place in steps:
            (expected,) = batches.step(WEIGHTS_EVERY - 3 + place)
            assert torch.equal(read[place], expected.masked_BL)
    batches.weight_V = old
    assert not torch.equal(read[3], batches.step(WEIGHTS_EVERY)[0].masked_BL)
