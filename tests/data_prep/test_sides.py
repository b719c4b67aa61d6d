"""Claims about one side of a chunk."""

import numpy as np
import pytest

from data_prep import sides
from data_prep.manifest import load_manifest
from data_prep.shards import IndexedFile
from data_prep.sides import Side
from data_prep.tokens import WordPiece


@pytest.fixture(scope="module")
def tokenizer(built):
    return WordPiece.load(built / "tokenizer")


@pytest.fixture(scope="module")
def config(built):
    return load_manifest(built).config


def documents(tokenizer, count):
    text = "kalo mi ne ru sota. vu ka lomine. "
    return [tokenizer.encode([text * (1 + number % 30)] * 3) for number in range(count)]


def side_of(tokenizer, config, key="key", count=50):
    side = Side(key, config, tokenizer)
    for ids, lengths in documents(tokenizer, count):
        side.add(ids, lengths, 7)
    return side


def test_a_shard_holds_what_came_in_and_counts_it(tokenizer, config, tmp_path):
    side = side_of(tokenizer, config)
    entry = side.write(tmp_path, "shard-00000", "0/a@0")
    assert (side.documents, side.characters) == (50, 350)
    assert entry.word_pieces == sum(len(ids) for ids, _ in documents(tokenizer, 50))
    assert (
        entry.sequences == len(IndexedFile(tmp_path / "shard-00000")) == len(IndexedFile(tmp_path / "shard-00000.mask"))
    )
    assert entry.sizes == {name: (tmp_path / name).stat().st_size for name in entry.files}


def test_no_document_makes_no_file(tokenizer, config, tmp_path):
    assert Side("key", config, tokenizer).write(tmp_path, "shard-00000", "0/a@0") is None
    assert not list(tmp_path.iterdir())


def test_another_key_draws_other_masks_for_the_same_text(tokenizer, config, tmp_path):
    entries = [side_of(tokenizer, config, key).write(tmp_path, key, key) for key in ("a", "b")]
    assert entries[0].word_pieces == entries[1].word_pieces
    assert entries[0].files["a.mask.bin"] != entries[1].files["b.mask.bin"]


def test_memory_does_not_grow_with_the_text_and_no_token_is_lost_by_it(tokenizer, config, tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "_TOKENS_AT_ONCE", 1000)
    side = Side("key", config, tokenizer)
    waited = 0
    for ids, lengths in documents(tokenizer, 50):
        side.add(ids, lengths, 0)
        waited = max(waited, side._tokens_waiting)
    side.write(tmp_path, "shard-00000", "0/a@0")
    assert waited < 1000
    ids = IndexedFile(tmp_path / "shard-00000").data
    text = ids[~np.isin(ids, (tokenizer.special.cls, tokenizer.special.sep))]
    assert np.array_equal(text, np.concatenate([ids for ids, _ in documents(tokenizer, 50)]))
