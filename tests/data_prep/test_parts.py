"""Claims about parts of shards: made from documents, read block by block, checked for damage, merged into shards."""

from hashlib import sha256

import numpy as np
import pytest

from data_prep import parts
from data_prep.manifest import load_manifest
from data_prep.masking import bytes_per_copy
from data_prep.parts import Block, ShardCutter, Side, merge_parts, part_path, read_part, write_block
from data_prep.records import PartEntry
from data_prep.shards import IndexedFile
from data_prep.tokens import WordPiece
from foundation.config import ConfigError
from foundation.files import NewFile

MASK_BYTES = 3


def block_of(sequences):
    random = np.random.default_rng(sequences)
    lengths = random.integers(3, 9, sequences).astype(np.int32)
    ids = random.integers(0, 60_000, lengths.sum()).astype(np.uint16)
    return Block(lengths, ids, random.integers(0, 256, MASK_BYTES * sequences).astype(np.uint8))


@pytest.fixture
def part(tmp_path):
    """A part with two blocks: its path, its entry and the blocks."""
    blocks = [block_of(4), block_of(7)]
    file = NewFile(tmp_path / "part")
    for block in blocks:
        write_block(file, block)
    assert not (tmp_path / "part").exists()
    size, digest = file.close()
    counts = {"sequences": 11, "tokens": 0, "word_pieces": 0, "unknown": 0, "ngrams": ()}
    return tmp_path / "part", PartEntry(**counts, size=size, sha256=digest), blocks


def test_blocks_are_read_as_they_were_written(part):
    path, entry, blocks = part
    assert path.stat().st_size == entry.size
    for ours, theirs in zip(read_part(path, entry, MASK_BYTES), blocks, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_flipped_bit_a_truncation_and_a_missing_file_are_errors(part):
    path, entry, _ = part
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ConfigError, match="part has changed since it was written"):
            list(read_part(path, entry, MASK_BYTES))
    path.write_bytes(whole[:-1])
    with pytest.raises(ConfigError, match="part has changed"):
        list(read_part(path, entry, MASK_BYTES))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(read_part(path, entry, MASK_BYTES))


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
def test_a_shard_takes_chunks_in_order_up_to_its_limit_but_at_least_one(sizes, shards):
    merges = cut(sizes, 10)
    assert [(merge.first_chunk, merge.last_chunk) for merge in merges] == shards
    assert [merge.number for merge in merges] == list(range(len(shards)))


def test_a_merged_shard_is_the_concatenation_of_its_parts(built, tmp_path):
    config = load_manifest(built).config
    row = config.mask_copies * bytes_per_copy(config.seq_length)
    random = np.random.default_rng(0)
    (tmp_path / ".build").mkdir()
    entries, all_ids, all_masks = [], [], []
    for chunk in range(3):
        lengths = random.integers(3, 60, 10 + chunk).astype(np.int32)
        ids = random.integers(0, 1000, lengths.sum()).astype(np.uint16)
        masks = random.integers(0, 256, len(lengths) * row).astype(np.uint8)
        file = NewFile(part_path(tmp_path, "train", chunk))
        half = len(lengths) // 2
        tokens = int(lengths[:half].sum())
        write_block(file, Block(lengths[:half], ids[:tokens], masks[: half * row]))
        write_block(file, Block(lengths[half:], ids[tokens:], masks[half * row :]))
        size, digest = file.close()
        entry = {"sequences": len(lengths), "tokens": len(ids), "size": size, "sha256": digest}
        entries.append(part_of(1).model_copy(update=entry))
        all_ids += np.split(ids, np.cumsum(lengths)[:-1])
        all_masks += list(masks.reshape(-1, row))
    cutter = ShardCutter("train", 1e9)
    assert not [merge for chunk, part in enumerate(entries) for merge in cutter.add(chunk, part)]
    [merge] = cutter.end()
    entry = merge_parts(merge, config, tmp_path)
    for name, expected in (("shard-00000", all_ids), ("shard-00000.mask", all_masks)):
        file = IndexedFile(tmp_path / name)
        file.require_sound()
        assert len(file) == entry.sequences == len(expected)
        assert all(np.array_equal(file[item], row) for item, row in enumerate(expected))
    assert (entry.word_pieces, entry.unknown, entry.ngrams) == (21, 3, (6, 3))
    for suffix, (size, digest) in entry.written.items():
        content = (tmp_path / f"shard-00000{suffix}").read_bytes()
        assert (len(content), sha256(content).hexdigest()) == (size, digest)
    assert entry.size == sum(path.stat().st_size for path in tmp_path.glob("shard-*"))


def test_a_changed_part_is_an_error_that_names_it(built, tmp_path):
    (tmp_path / ".build").mkdir()
    part_path(tmp_path, "train", 0).write_bytes(b"other")
    [merge] = cut([5], 10)
    with pytest.raises(ConfigError, match=r"train-00000\.part has changed"):
        merge_parts(merge, load_manifest(built).config, tmp_path)


@pytest.fixture(scope="module")
def tokenizer(built):
    return WordPiece.load(built / "tokenizer")


@pytest.fixture(scope="module")
def config(built):
    return load_manifest(built).config


def documents(tokenizer, count):
    text = "kalo mi ne ru sota. vu ka lomine. "
    return [tokenizer.encode([text * (1 + number % 30)] * 3) for number in range(count)]


def side_of(tokenizer, config, path, key="key", count=50):
    side = Side(key, config, tokenizer, path)
    for ids, lengths in documents(tokenizer, count):
        side.add(ids, lengths)
    return side


def test_a_shard_holds_and_counts_every_document(tokenizer, config, tmp_path):
    side = side_of(tokenizer, config, tmp_path / "part")
    entry = side.finish()
    assert entry.word_pieces == sum(len(ids) for ids, _ in documents(tokenizer, 50))
    [block] = read_part(tmp_path / "part", entry, config.mask_copies * 8)
    assert (len(block.lengths), len(block.ids)) == (entry.sequences, entry.tokens)
    assert block.lengths.sum() == entry.tokens
    assert entry.size == (tmp_path / "part").stat().st_size


def test_no_documents_make_no_file(tokenizer, config, tmp_path):
    assert Side("key", config, tokenizer, tmp_path / "part").finish() is None
    assert not list(tmp_path.iterdir())


def test_another_key_draws_other_masks_for_the_same_text(tokenizer, config, tmp_path):
    entries = [side_of(tokenizer, config, tmp_path / key, key).finish() for key in ("a", "b")]
    assert entries[0].word_pieces == entries[1].word_pieces
    assert entries[0].sha256 != entries[1].sha256


@pytest.mark.parametrize(("limit", "most"), [("_TOKENS_AT_ONCE", 1000), ("_DOCUMENTS_AT_ONCE", 3)])
def test_memory_does_not_grow_with_the_text_and_no_token_is_lost(tokenizer, config, tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(parts, limit, most)
    side = Side("key", config, tokenizer, tmp_path / "part")
    for ids, lengths in documents(tokenizer, 50):
        side.add(ids, lengths)
        assert (side._tokens_waiting if limit == "_TOKENS_AT_ONCE" else len(side._waiting)) < most
    entry = side.finish()
    blocks = list(read_part(tmp_path / "part", entry, config.mask_copies * 8))
    assert len(blocks) > 10
    ids = np.concatenate([block.ids for block in blocks])
    text = ids[~np.isin(ids, (tokenizer.special.cls, tokenizer.special.sep))]
    assert np.array_equal(text, np.concatenate([ids for ids, _ in documents(tokenizer, 50)]))
