"""Claims about the two sides of a shard: made from documents, in bounded memory."""

import numpy as np
import pytest

from data_prep import pipeline
from data_prep.inspect_shards import file_problems
from data_prep.manifest import load_manifest
from data_prep.pipeline import Side
from data_prep.shards import IndexedFile
from data_prep.tokens import SubwordTokenizer


@pytest.fixture(scope="module")
def tokenizer(built):
    return SubwordTokenizer.load(built / "tokenizer")


@pytest.fixture(scope="module")
def config(built):
    return load_manifest(built).config


def documents(tokenizer, count):
    text = "kalo mi ne ru sota. vu ka lomine. "
    return [tokenizer.encode([text * (1 + number % 30)] * 3) for number in range(count)]


def text_of(folder, tokenizer):
    """The ids of all sequences, without special tokens."""
    file = IndexedFile(folder / "shard-00000")
    file.require_sound()
    return file.data[~np.isin(file.data, (tokenizer.special.cls, tokenizer.special.sep))]


def side_of(tokenizer, config, folder, key="key", count=50):
    side = Side(key, config, tokenizer, folder, "shard-00000")
    for ids, lengths in documents(tokenizer, count):
        side.add(ids, lengths)
    return side


def test_a_shard_holds_and_counts_every_document(tokenizer, config, tmp_path):
    entry = side_of(tokenizer, config, tmp_path).finish()
    expected = np.concatenate([ids for ids, _ in documents(tokenizer, 50)])
    assert np.array_equal(text_of(tmp_path, tokenizer), expected)
    assert entry.word_pieces == len(expected)
    file, masks = IndexedFile(tmp_path / "shard-00000"), IndexedFile(tmp_path / "shard-00000.mask")
    assert len(file) == len(masks) == entry.sequences
    assert file.lengths.sum() == entry.tokens
    assert not file_problems(tmp_path, entry)
    assert entry.size == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_no_documents_make_no_file(tokenizer, config, tmp_path):
    assert Side("key", config, tokenizer, tmp_path, "shard-00000").finish() is None
    assert not list(tmp_path.iterdir())


def test_another_key_draws_other_masks_for_the_same_text(tokenizer, config, tmp_path):
    for key in ("a", "b"):
        (tmp_path / key).mkdir()
    entries = [side_of(tokenizer, config, tmp_path / key, key).finish() for key in ("a", "b")]
    assert entries[0].word_pieces == entries[1].word_pieces
    assert entries[0].written[".mask.bin"] != entries[1].written[".mask.bin"]


@pytest.mark.parametrize(("limit", "most"), [("_TOKENS_AT_ONCE", 1000), ("_DOCUMENTS_AT_ONCE", 3)])
def test_memory_does_not_grow_with_the_text_and_no_token_is_lost(tokenizer, config, tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(pipeline, limit, most)
    side = Side("key", config, tokenizer, tmp_path, "shard-00000")
    for ids, lengths in documents(tokenizer, 50):
        side.add(ids, lengths)
        assert (side._tokens_waiting if limit == "_TOKENS_AT_ONCE" else len(side._waiting)) < most
    side.finish()
    assert np.array_equal(text_of(tmp_path, tokenizer), np.concatenate([ids for ids, _ in documents(tokenizer, 50)]))
