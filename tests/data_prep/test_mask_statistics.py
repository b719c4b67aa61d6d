"""Claims about the counts of a folder's sequences, where its masks fall, and the picture of that."""

from dataclasses import replace

import numpy as np
import pytest

from data_prep.inspect_shards import InspectOptions, main
from data_prep.inspection import read_rows
from data_prep.manifest import load_manifest
from data_prep.mask_statistics import MaskStatistics, draw_masks, run_lengths, simulated_mask
from data_prep.masking import Masker, mask_size
from data_prep.tokens import WordPiece
from foundation.config import ConfigError

STARTS = np.array([False, True, False, True, True, False, False, True, False, True, True, False])
MASKABLE = np.array([False, *[True] * 6, False, *[True] * 3, False])  # [CLS], six tokens, [SEP], three, [SEP]


@pytest.fixture(scope="module")
def shard(built):
    manifest = load_manifest(built)
    [rows] = read_rows(built, manifest.shards[1], manifest)
    return rows, manifest, WordPiece.load(built / "tokenizer")


def statistics_of(rows, manifest, tokenizer):
    statistics = MaskStatistics(manifest.seq_length)
    statistics.add(rows, manifest, tokenizer)
    return statistics


def test_rates_of_sound_masks_are_the_chance(shard):
    rows, _, _ = shard
    statistics = statistics_of(*shard)
    assert statistics.position.sum() == statistics.piece.sum() == rows.masked.sum()
    assert statistics.position_chance.sum() == pytest.approx(rows.masked.sum())
    assert statistics.piece[:3] == pytest.approx(statistics.piece_chance[:3], rel=0.1)
    assert statistics.most_cut <= 2


def test_masks_that_prefer_the_beginning_are_seen(shard):
    rows, manifest, tokenizer = shard
    masked = np.zeros_like(rows.masked)
    for row, length in enumerate(rows.lengths):
        masked[row, :, 1 : 1 + int(mask_size(length))] = True
    statistics = statistics_of(replace(rows, masked=masked), manifest, tokenizer)
    assert statistics.position[1] > 4 * statistics.position_chance[1]


def test_words_cut_are_counted(shard):
    rows, manifest, tokenizer = shard
    masked = np.zeros_like(rows.masked)
    masked[:, :, 1:] = tokenizer.continuation[rows.ids][:, None, 1:]  # every word of two pieces or more is cut
    statistics = statistics_of(replace(rows, masked=masked), manifest, tokenizer)
    assert statistics.words_cut == statistics.words_masked > 0
    assert statistics.piece[0] == 0


def test_a_simulated_mask_is_k_tokens_that_may_be_masked():
    for seed in range(50):
        masked = simulated_mask(MASKABLE, STARTS & MASKABLE, 12, (0.8, 0.1, 0.1), np.random.default_rng(seed))
        assert masked.sum() == mask_size(12)
        assert not (masked & ~MASKABLE).any()


def test_the_simulation_and_the_masker_have_the_same_run_lengths():
    """The one is slow and plain, the other vectorised; the special ids are 0 and 1, `##` pieces 3."""
    random = np.random.default_rng(0)
    ids = np.where(random.random(64) < 0.3, 3, 2).astype(np.uint16)
    ids[[0, 30, 63]], ids[[1, 31]] = (0, 1, 1), 2
    special, continuation = np.array([True, True, False, False]), np.array([False, False, False, True])
    maskable = ~special[ids]
    starts = maskable & ~continuation[ids]
    ngram, draws = (0.5, 0.3, 0.2), 3000
    simulated = [run_lengths(simulated_mask(maskable, starts, 64, ngram, random)[None, None]) for _ in range(draws)]
    masker = Masker(64, 1, ngram, special, continuation)
    bitmaps, _ = masker.draw(np.tile(ids, draws), np.full(draws, 64, np.int32), random)
    runs = run_lengths(np.unpackbits(bitmaps, bitorder="little").reshape(draws, 1, 64).astype(bool))
    expected, counts = (np.bincount(lengths, minlength=12)[:8] for lengths in (np.concatenate(simulated), runs))
    assert counts[1:5] == pytest.approx(expected[1:5], rel=0.1)


def test_every_sequence_token_and_mask_is_counted(shard):
    rows, manifest, tokenizer = shard
    statistics = statistics_of(*shard)
    statistics.add(rows, manifest, tokenizer)
    assert statistics.sequences == 2 * manifest.shards[1].sequences
    assert statistics.tokens == 2 * manifest.shards[1].tokens
    masked = 2 * manifest.mask_copies * int(mask_size(rows.lengths).sum())
    assert statistics.position.sum() == masked
    assert (statistics.runs * np.arange(len(statistics.runs))).sum() == masked


def test_the_picture_is_a_png_of_three_panels(built, tmp_path):
    from matplotlib.image import imread

    assert main(InspectOptions(folder=built, figure=tmp_path / "masks.png")) == 0
    height, width, _ = imread(tmp_path / "masks.png").shape
    assert width > 3 * height


def test_a_picture_of_nothing_can_be_drawn(tmp_path):
    draw_masks(MaskStatistics(64), tmp_path / "none.png")
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["missing/masks.png", "masks.nonsense"])
def test_a_picture_that_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be written"):
        draw_masks(MaskStatistics(64), tmp_path / name)
