"""Claims about one chunk's way to its shards."""

import numpy as np
import pytest

from data_prep.chunks import read_chunks
from data_prep.formats import Reading
from data_prep.manifest import HELD_OUT_NAME, load_manifest
from data_prep.output import Plan, prepare
from data_prep.pipeline import build_chunk, record_path
from data_prep.sentences import SentenceSplitter, load_model
from data_prep.shards import IndexedFile
from data_prep.sources import find_sources
from data_prep.tokens import WordPiece


@pytest.fixture
def folder(built, tmp_path):
    """An output folder with the tools of the shared build in it, and its configuration."""
    manifest = load_manifest(built)
    plan = Plan(config=manifest.config, versions=manifest.versions, inputs=manifest.inputs)
    prepare(tmp_path / "out", plan, WordPiece.load(built / "tokenizer"), load_model(built / "punkt"))
    return tmp_path / "out", manifest.config


def chunk_of(path):
    [chunk] = read_chunks(find_sources([path]), 10**9, Reading())
    return chunk


def text_ids(folder, tokenizer):
    ids = IndexedFile(folder / "shard-00000").data
    return ids[~np.isin(ids, (tokenizer.special.cls, tokenizer.special.sep))]


@pytest.mark.parametrize("content", ["Kalo mi.\nNe ru so.\n\nTa vu.", "ka. " * 3000, "\n\n".join(["Lo mi."] * 900)])
def test_every_word_piece_of_the_text_is_in_the_shard(tmp_path, folder, content):
    output, config = folder
    (tmp_path / "a.txt").write_text(content)
    record = build_chunk(chunk_of(tmp_path / "a.txt"), config.model_copy(update={"held_out": 0.0}), output)
    tokenizer, splitter = WordPiece.load(output / "tokenizer"), SentenceSplitter(output / "punkt")
    expected, _ = tokenizer.encode([s for document in content.split("\n\n") for s in splitter.split(document)])
    assert np.array_equal(text_ids(output, tokenizer), expected)
    assert record.train.word_pieces == len(expected)
    assert record.held_out is None
    assert record_path(output, 0).is_file()


def test_equal_documents_are_never_on_different_sides(tmp_path, folder):
    output, config = folder
    (tmp_path / "a.txt").write_text("\n\n".join(f"Kalo {'mi ' * (n % 40)}." for n in range(400)))
    record = build_chunk(chunk_of(tmp_path / "a.txt"), config.model_copy(update={"held_out": 0.5}), output)
    assert record.books.documents.held_out % 10 == 0
    assert 0 < record.books.documents.held_out < 400


def test_the_seed_does_not_change_what_is_held_out(tmp_path, folder):
    output, config = folder
    (tmp_path / "a.txt").write_text("\n\n".join(f"Kalo {'mi ' * n}." for n in range(100)))
    records = [
        build_chunk(chunk_of(tmp_path / "a.txt"), config.model_copy(update={"held_out": 0.3, "seed": seed}), output)
        for seed in (0, 1)
    ]
    assert records[0].books == records[1].books
    assert records[0].train.files != records[1].train.files


def test_the_random_stream_belongs_to_the_chunks_key(tmp_path, folder):
    output, config = folder
    content = "Kalo mi ne. " * 400
    files = []
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(content)
        record = build_chunk(chunk_of(tmp_path / name), config.model_copy(update={"held_out": 0.0}), output)
        files.append(record.train.files["shard-00000.mask.bin"])
    assert files[0] != files[1]


def test_the_books_balance_with_empty_and_malformed_documents(tmp_path, folder):
    output, config = folder
    blocks = (b"", b"Ka \xff\xfe lo \xef\xbf\xbd.", b"\x00\x01")
    wiki = b"".join(b"<doc id=''>\n%s\n</doc>\n" % block for block in blocks)
    (tmp_path / "wiki_00").write_bytes(wiki)
    books = build_chunk(chunk_of(tmp_path / "wiki_00"), config.model_copy(update={"held_out": 0.0}), output).books
    assert books.documents.model_dump() == {"read": 3, "train": 1, "held_out": 0, "dropped": {"empty": 2}}
    assert books.characters.balances
    assert books.word_pieces.balances
    assert books.invalid_utf8 == 2


def test_a_chunk_without_text_makes_no_shard(tmp_path, folder):
    output, config = folder
    (tmp_path / "wiki_00").write_text('<doc id="1">\n</doc>\n')
    record = build_chunk(chunk_of(tmp_path / "wiki_00"), config, output)
    assert record.train is record.held_out is None
    assert not list(output.glob("shard-*"))


def test_held_out_text_is_in_its_own_folder(built):
    main, held_out = load_manifest(built), load_manifest(built / HELD_OUT_NAME)
    assert held_out.totals.sequences > 0
    assert main.books == held_out.books
    assert main.books.word_pieces.held_out == held_out.totals.word_pieces
