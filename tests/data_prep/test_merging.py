"""Claims about merging parts into shards."""

import numpy as np
import pytest

from data_prep.manifest import load_manifest
from data_prep.masking import bytes_per_copy
from data_prep.merging import ShardCutter, merge_parts
from data_prep.parts import Block, PartWriter
from data_prep.pipeline import part_path
from data_prep.records import PartEntry
from data_prep.shards import IndexedFile


def part_of(size, sequences=1, sha256="0"):
    return PartEntry(sequences=sequences, tokens=9, word_pieces=7, unknown=1, ngrams=(2, 1), size=size, sha256=sha256)


def cut(sizes, limit):
    cutter = ShardCutter("train", limit)
    merges = [merge for chunk, size in enumerate(sizes) for merge in cutter.add(chunk, size and part_of(size))]
    return [*merges, *cutter.end()]


@pytest.mark.parametrize(
    ("sizes", "shards"),
    [
        ([4, 4, 4, 4], [(0, 1), (2, 3)]),
        ([5, 5, 1], [(0, 1), (2, 2)]),
        ([30, 1, 30], [(0, 0), (1, 1), (2, 2)]),
        ([None, 4, None, 4, 4, None], [(1, 3), (4, 4)]),
        ([None], []),
        ([], []),
    ],
)
def test_a_shard_takes_chunks_in_order_within_its_limit_and_at_least_one(sizes, shards):
    merges = cut(sizes, 10)
    assert [(merge.first_chunk, merge.last_chunk) for merge in merges] == shards
    assert [merge.number for merge in merges] == list(range(len(shards)))


def test_a_merged_shard_is_its_parts_end_to_end(built, tmp_path):
    config = load_manifest(built).config
    row = config.mask_copies * bytes_per_copy(config.seq_length)
    random = np.random.default_rng(0)
    (tmp_path / ".build").mkdir()
    parts, all_ids, all_masks = [], [], []
    for chunk in range(3):
        lengths = random.integers(3, 60, 10 + chunk).astype(np.int32)
        ids = random.integers(0, 1000, lengths.sum()).astype(np.uint16)
        masks = random.integers(0, 256, len(lengths) * row).astype(np.uint8)
        writer = PartWriter(part_path(tmp_path, "train", chunk))
        half = len(lengths) // 2
        tokens = int(lengths[:half].sum())
        writer.add(Block(lengths[:half], ids[:tokens], masks[: half * row]))
        writer.add(Block(lengths[half:], ids[tokens:], masks[half * row :]))
        size, digest = writer.close()
        entry = {"sequences": len(lengths), "tokens": len(ids), "size": size, "sha256": digest}
        parts.append(part_of(1).model_copy(update=entry))
        all_ids += np.split(ids, np.cumsum(lengths)[:-1])
        all_masks += list(masks.reshape(-1, row))
    cutter = ShardCutter("train", 1e9)
    assert not [merge for chunk, part in enumerate(parts) for merge in cutter.add(chunk, part)]
    [merge] = cutter.end()
    entry = merge_parts(merge, config, tmp_path)
    for name, expected in (("shard-00000", all_ids), ("shard-00000.mask", all_masks)):
        file = IndexedFile(tmp_path / name)
        file.require_sound()
        assert len(file) == entry.sequences == len(expected)
        assert all(np.array_equal(file[item], row) for item, row in enumerate(expected))
    assert (entry.word_pieces, entry.unknown, entry.ngrams) == (21, 3, (6, 3))
    assert entry.sizes == {name: (tmp_path / name).stat().st_size for name in entry.files}


def test_a_part_that_changed_is_an_error_that_names_it(built, tmp_path):
    (tmp_path / ".build").mkdir()
    part_path(tmp_path, "train", 0).write_bytes(b"other")
    [merge] = cut([5], 10)
    with pytest.raises(OSError, match=r"train-00000\.part has changed"):
        merge_parts(merge, load_manifest(built).config, tmp_path)
