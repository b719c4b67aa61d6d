"""Claims about one chunk's way to its shards."""

import os

import numpy as np
import pytest

from data_prep.chunks import read_chunks
from data_prep.formats import Reading
from data_prep.manifest import HELD_OUT_NAME, load_manifest
from data_prep.masking import bytes_per_copy
from data_prep.output import prepare
from data_prep.parts import read_part
from data_prep.pipeline import ChunkTask, do_chunk, part_path
from data_prep.sentences import SentenceSplitter, load_model
from data_prep.sources import find_sources
from data_prep.tokens import WordPiece
from foundation.config import ConfigError


@pytest.fixture
def folder(built, tmp_path):
    """An output folder with the tools of the shared build in it, and its configuration."""
    (tmp_path / "out").mkdir()
    prepare(tmp_path / "out", WordPiece.load(built / "tokenizer"), load_model(built / "punkt"))
    return tmp_path / "out", load_manifest(built).config


def build(chunk, config, output):
    return do_chunk(ChunkTask(chunk, None, frozenset()), config, output)


def chunk_of(path):
    [chunk] = read_chunks(find_sources([path]), 10**9, Reading())
    return chunk


def text_ids(folder, config, record, tokenizer):
    row = config.mask_copies * bytes_per_copy(config.seq_length)
    ids = np.concatenate([block.ids for block in read_part(part_path(folder, "train", 0), record.train, row)])
    return ids[~np.isin(ids, (tokenizer.special.cls, tokenizer.special.sep))]


@pytest.mark.parametrize("content", ["Kalo mi.\nNe ru so.\n\nTa vu.", "ka. " * 3000, "\n\n".join(["Lo mi."] * 900)])
def test_every_word_piece_of_the_text_is_in_the_shard(tmp_path, folder, content):
    output, config = folder
    (tmp_path / "a.txt").write_text(content)
    record = build(chunk_of(tmp_path / "a.txt"), config.model_copy(update={"held_out": 0.0}), output)
    tokenizer, splitter = WordPiece.load(output / "tokenizer"), SentenceSplitter(output / "punkt")
    expected, _ = tokenizer.encode([s for document in content.split("\n\n") for s in splitter.split(document)])
    assert np.array_equal(text_ids(output, config, record, tokenizer), expected)
    assert record.train.word_pieces == len(expected)
    assert record.held_out is None
    assert not part_path(output, "held_out", 0).exists()


def test_equal_documents_are_never_on_different_sides(tmp_path, folder):
    output, config = folder
    (tmp_path / "a.txt").write_text("\n\n".join(f"Kalo {'mi ' * (n % 40)}." for n in range(400)))
    record = build(chunk_of(tmp_path / "a.txt"), config.model_copy(update={"held_out": 0.5}), output)
    assert record.books.documents.held_out % 10 == 0
    assert 0 < record.books.documents.held_out < 400


def test_the_seed_does_not_change_what_is_held_out(tmp_path, folder):
    output, config = folder
    (tmp_path / "a.txt").write_text("\n\n".join(f"Kalo {'mi ' * n}." for n in range(100)))
    records = [
        build(chunk_of(tmp_path / "a.txt"), config.model_copy(update={"held_out": 0.3, "seed": seed}), output)
        for seed in (0, 1)
    ]
    assert records[0].books == records[1].books
    assert records[0].train.sha256 != records[1].train.sha256


def test_the_random_stream_belongs_to_the_chunks_key(tmp_path, folder):
    output, config = folder
    content = "Kalo mi ne. " * 400
    files = []
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(content)
        record = build(chunk_of(tmp_path / name), config.model_copy(update={"held_out": 0.0}), output)
        files.append(record.train.sha256)
    assert files[0] != files[1]


def test_the_books_balance_with_empty_and_malformed_documents(tmp_path, folder):
    output, config = folder
    blocks = (b"", b"Ka \xff\xfe lo \xef\xbf\xbd.", b"\x00\x01")
    wiki = b"".join(b"<doc id=''>\n%s\n</doc>\n" % block for block in blocks)
    (tmp_path / "wiki_00").write_bytes(wiki)
    books = build(chunk_of(tmp_path / "wiki_00"), config.model_copy(update={"held_out": 0.0}), output).books
    assert books.documents.model_dump() == {"read": 3, "train": 1, "held_out": 0, "dropped": {"empty": 2}}
    assert books.characters.balances
    assert books.word_pieces.balances
    assert books.invalid_utf8 == 2


def test_a_chunk_without_text_makes_no_shard(tmp_path, folder):
    output, config = folder
    (tmp_path / "wiki_00").write_text('<doc id="1">\n</doc>\n')
    record = build(chunk_of(tmp_path / "wiki_00"), config, output)
    assert record.train is record.held_out is None
    assert not list(output.glob(".build/*"))


def test_held_out_text_is_in_its_own_folder(built):
    main, held_out = load_manifest(built), load_manifest(built / HELD_OUT_NAME)
    assert held_out.totals.sequences > 0
    assert main.books == held_out.books
    assert main.books.word_pieces.held_out == held_out.totals.word_pieces


def test_a_chunk_that_is_built_already_is_left_as_it_is_and_a_damaged_part_is_made_again(tmp_path, folder):
    output, config = folder
    (tmp_path / "a.txt").write_text("Kalo mi ne. " * 400)
    config = config.model_copy(update={"held_out": 0.0})
    record = build(chunk_of(tmp_path / "a.txt"), config, output)
    path = part_path(output, "train", 0)
    whole, again = path.read_bytes(), ChunkTask(chunk_of(tmp_path / "a.txt"), record, frozenset())
    before = path.stat()
    assert do_chunk(again, config, output) == record
    assert path.stat() == before
    for damage in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(damage)
        assert do_chunk(again, config, output) == record
        assert path.read_bytes() == whole
    path.unlink()
    assert do_chunk(again._replace(merged=frozenset({"train"})), config, output) == record
    assert not path.exists(), "a whole shard holds this part"


def test_other_text_than_was_recorded_is_refused_by_name_at_the_same_size_and_time(tmp_path, folder):
    output, config = folder
    path = tmp_path / "a.txt"
    path.write_text("Kalo mi ne. " * 400)
    status = path.stat()
    record = build(chunk_of(path), config, output)
    path.write_text("Kalo mi so. " * 400)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ConfigError, match=r"a\.txt is not what .* was built from"):
        do_chunk(ChunkTask(chunk_of(path), record, frozenset()), config, output)
