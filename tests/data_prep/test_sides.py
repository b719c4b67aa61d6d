"""Claims about one side of a chunk."""

import numpy as np
import pytest

from data_prep import sides
from data_prep.manifest import load_manifest
from data_prep.parts import read_part
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


def side_of(tokenizer, config, path, key="key", count=50):
    side = Side(key, config, tokenizer, path)
    for ids, lengths in documents(tokenizer, count):
        side.add(ids, lengths, 7)
    return side


def test_a_shard_holds_what_came_in_and_counts_it(tokenizer, config, tmp_path):
    side = side_of(tokenizer, config, tmp_path / "part")
    entry = side.finish()
    assert (side.documents, side.characters) == (50, 350)
    assert entry.word_pieces == sum(len(ids) for ids, _ in documents(tokenizer, 50))
    [block] = read_part(tmp_path / "part", entry, config.mask_copies * 8)
    assert (len(block.lengths), len(block.ids)) == (entry.sequences, entry.tokens)
    assert block.lengths.sum() == entry.tokens
    assert entry.size == (tmp_path / "part").stat().st_size


def test_no_document_makes_no_file(tokenizer, config, tmp_path):
    assert Side("key", config, tokenizer, tmp_path / "part").finish() is None
    assert not list(tmp_path.iterdir())


def test_another_key_draws_other_masks_for_the_same_text(tokenizer, config, tmp_path):
    entries = [side_of(tokenizer, config, tmp_path / key, key).finish() for key in ("a", "b")]
    assert entries[0].word_pieces == entries[1].word_pieces
    assert entries[0].sha256 != entries[1].sha256


@pytest.mark.parametrize(("limit", "most"), [("_TOKENS_AT_ONCE", 1000), ("_DOCUMENTS_AT_ONCE", 3)])
def test_memory_does_not_grow_with_the_text_and_no_token_is_lost_by_it(
    tokenizer, config, tmp_path, monkeypatch, limit, most
):
    monkeypatch.setattr(sides, limit, most)
    side = Side("key", config, tokenizer, tmp_path / "part")
    for ids, lengths in documents(tokenizer, 50):
        side.add(ids, lengths, 0)
        assert (side._tokens_waiting if limit == "_TOKENS_AT_ONCE" else len(side._waiting)) < most
    entry = side.finish()
    blocks = list(read_part(tmp_path / "part", entry, config.mask_copies * 8))
    assert len(blocks) > 10
    ids = np.concatenate([block.ids for block in blocks])
    text = ids[~np.isin(ids, (tokenizer.special.cls, tokenizer.special.sep))]
    assert np.array_equal(text, np.concatenate([ids for ids, _ in documents(tokenizer, 50)]))
