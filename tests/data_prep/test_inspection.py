"""Claims about the checks of a shard folder (each finds its kind of damage) and about the places of masks."""

from dataclasses import replace

import numpy as np
import pytest

from data_prep.inspection import (
    MaskStatistics,
    file_problems,
    megatron_problems,
    problems_of,
    read_rows,
    sample_rows,
)
from data_prep.manifest import load_manifest
from data_prep.masking import mask_size
from data_prep.tokens import WordPiece
from foundation.config import ConfigError
from tests.data_prep.conftest import write_indexed


@pytest.fixture(scope="module")
def manifest(built):
    return load_manifest(built)


@pytest.fixture
def rows(built, manifest):
    [rows] = read_rows(built, manifest.shards[0], manifest)
    return replace(rows, ids=rows.ids.copy(), masked=rows.masked.copy())


def test_an_intact_shard_has_no_problems(built, manifest, rows):
    assert problems_of(rows, manifest) == []
    assert file_problems(built, manifest.shards[0]) == []
    assert megatron_problems(built, manifest.shards[0]) == []


def no_start(rows, special):
    rows.ids[3, 0] = special.unk


def second_start(rows, special):
    rows.ids[3, 2] = special.cls


def no_end(rows, special):
    rows.ids[3, rows.lengths[3] - 1] = special.unk


def mask_inside(rows, special):
    rows.ids[3, 1] = special.mask


def beyond_the_vocabulary(rows, special):
    rows.ids[3, 1] = 60_000


def masked_start(rows, special):
    rows.masked[3, 0, 0] = True


def one_too_many(rows, special):
    free = np.flatnonzero(~rows.masked[3, 5, 1 : rows.lengths[3] - 1]) + 1
    rows.masked[3, 5, free[0]] = True


def masked_beyond(rows, special):
    rows.masked[3, 0, rows.lengths[3] :] = True


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (no_start, "does not start with [CLS]"),
        (second_start, "does not start with [CLS], or has a second one"),
        (no_end, "does not end with [SEP]"),
        (mask_inside, "has [MASK] or [PAD] among its tokens"),
        (beyond_the_vocabulary, "has an id beyond the vocabulary"),
        (masked_start, "has a special token masked"),
        (one_too_many, "does not have ceil(0.15 n) masked positions"),
        (masked_beyond, "has a mask beyond its end"),
    ],
)
def test_each_damage_is_found_and_its_sequence_named(manifest, rows, damage, problem):
    damage(rows, manifest.special_tokens)
    found = problems_of(rows, manifest)
    assert any(line.startswith(f"sequence 3 {problem}") for line in found), found


def test_changed_and_missing_files_are_distinguished(built, manifest, tmp_path):
    shard = manifest.shards[0]
    for name in (shard.name + suffix for suffix in shard.written):
        (tmp_path / name).write_bytes((built / name).read_bytes())
    content = bytearray((tmp_path / "shard-00000.bin").read_bytes())
    content[40] ^= 1
    (tmp_path / "shard-00000.bin").write_bytes(content)
    (tmp_path / "shard-00000.mask.idx").unlink()
    assert file_problems(tmp_path, shard) == [
        "shard-00000.bin: changed since it was written (sha256)",
        "shard-00000.mask.idx: No such file or directory",
    ]


def test_masks_of_another_shape_are_refused(built, manifest, tmp_path):
    shard = manifest.shards[0]
    for name in (shard.name + suffix for suffix in shard.written):
        (tmp_path / name).write_bytes((built / name).read_bytes())
    wrong = np.zeros(3 * shard.sequences, np.uint8)
    write_indexed(tmp_path / "shard-00000.mask", wrong, np.full(shard.sequences, 3, np.int32))
    with pytest.raises(ConfigError, match="does not have one row of masks per sequence"):
        next(read_rows(tmp_path, shard, manifest))


def test_a_sample_is_spread_over_all_shards_and_is_complete_if_they_are_small(built, manifest):
    whole = [rows for shard in manifest.shards for rows in read_rows(built, shard, manifest)]
    everything = list(sample_rows(built, manifest, 64, 64))
    assert sum(len(rows.lengths) for rows in everything) == manifest.totals.sequences
    blocks = list(sample_rows(built, manifest, 8, 3))
    assert [len(rows.lengths) for rows in blocks] == [3] * 8
    found = []
    for rows in blocks:
        same = [
            number
            for number, shard in enumerate(whole)
            if len(shard.ids) >= rows.first + 3
            and np.array_equal(shard.ids[rows.first : rows.first + 3], rows.ids)
            and np.array_equal(shard.masked[rows.first : rows.first + 3], rows.masked)
        ]
        assert len(same) == 1
        found += same
    assert found[0] == 0
    assert found == sorted(found)
    assert len(set(found)) >= min(4, len(whole))


@pytest.fixture(scope="module")
def shard(built, manifest):
    [rows] = read_rows(built, manifest.shards[1], manifest)
    return rows, manifest, WordPiece.load(built / "tokenizer")


def statistics_of(rows, manifest, tokenizer):
    statistics = MaskStatistics(manifest.seq_length)
    statistics.add(rows, manifest, tokenizer)
    return statistics


def test_rates_of_correct_masks_are_uniform(shard):
    rows, _, _ = shard
    statistics = statistics_of(*shard)
    assert statistics.position.sum() == statistics.piece.sum() == rows.masked.sum()
    assert statistics.position_chance.sum() == pytest.approx(rows.masked.sum())
    assert statistics.piece[:3] == pytest.approx(statistics.piece_chance[:3], rel=0.1)
    assert statistics.most_cut <= 2


def test_masks_that_prefer_the_beginning_are_detected(shard):
    rows, manifest, tokenizer = shard
    masked = np.zeros_like(rows.masked)
    for row, length in enumerate(rows.lengths):
        masked[row, :, 1 : 1 + int(mask_size(length))] = True
    statistics = statistics_of(replace(rows, masked=masked), manifest, tokenizer)
    assert statistics.position[1] > 4 * statistics.position_chance[1]


def test_cut_words_are_counted(shard):
    rows, manifest, tokenizer = shard
    masked = np.zeros_like(rows.masked)
    masked[:, :, 1:] = tokenizer.continuation[rows.ids][:, None, 1:]  # every word of two pieces or more is cut
    statistics = statistics_of(replace(rows, masked=masked), manifest, tokenizer)
    assert statistics.words_cut == statistics.words_masked > 0
    assert statistics.piece[0] == 0


def test_every_sequence_token_and_mask_is_counted(shard):
    rows, manifest, tokenizer = shard
    statistics = statistics_of(*shard)
    statistics.add(rows, manifest, tokenizer)
    assert statistics.sequences == 2 * manifest.shards[1].sequences
    assert statistics.tokens == 2 * manifest.shards[1].tokens
    masked = 2 * manifest.mask_copies * int(mask_size(rows.lengths).sum())
    assert statistics.position.sum() == masked
    assert (statistics.runs * np.arange(len(statistics.runs))).sum() == masked
