"""Claims about turning the text of one shard into its files, and about accounting for each of its documents."""

import numpy as np
import pytest

from data_prep import pipeline
from data_prep.formats import Reading
from data_prep.inspect_shards import file_problems
from data_prep.manifest import HELD_OUT_NAME, load_manifest
from data_prep.output import prepare
from data_prep.pipeline import Side, build_shard
from data_prep.sentences import Punkt, load_model, split_sentences
from data_prep.shards import IndexedFile
from data_prep.sources import find_sources
from data_prep.tokens import SubwordTokenizer
from tests.data_prep.conftest import read_shards


@pytest.fixture
def folder(built, tmp_path):
    """An output folder with the tokenizer and Punkt model of the shared build, and its configuration."""
    (tmp_path / "out").mkdir()
    prepare(tmp_path / "out", SubwordTokenizer.load(built / "tokenizer"), load_model(built / "punkt"))
    return tmp_path / "out", load_manifest(built).config


def build(path, config, output):
    [(shard, chunks)] = read_shards(find_sources([path]), 1e9, Reading())
    return build_shard(shard.name, shard.ranges[0].key, iter(chunks), {}, config, output)


def text_ids(folder, tokenizer):
    ids = IndexedFile(folder / "shard-00000").data
    return ids[~np.isin(ids, (tokenizer.special.cls, tokenizer.special.sep))]


@pytest.mark.parametrize("content", ["Kalo mi.\nNe ru so.\n\nTa vu.", "ka. " * 3000, "\n\n".join(["Lo mi."] * 900)])
def test_every_word_piece_of_the_text_is_in_the_shard(tmp_path, folder, content):
    output, config = folder
    (tmp_path / "a.txt").write_text(content)
    record = build(tmp_path / "a.txt", config.model_copy(update={"held_out": 0.0}), output)
    tokenizer, punkt = SubwordTokenizer.load(output / "tokenizer"), Punkt(load_model(output / "punkt"))
    expected, _ = tokenizer.encode([s for document in content.split("\n\n") for s in split_sentences(document, punkt)])
    assert np.array_equal(text_ids(output, tokenizer), expected)
    assert record.train.word_pieces == len(expected)
    assert record.held_out is None
    assert not (output / "held_out" / "shard-00000.bin").exists()


def test_a_shard_without_held_out_text_leaves_no_file_of_an_earlier_one_that_had_some(tmp_path, folder):
    output, config = folder
    (tmp_path / "a.txt").write_text("\n\n".join(f"Kalo {'mi ' * n}." for n in range(100)))
    for share in (0.5, 0.0):
        record = build(tmp_path / "a.txt", config.model_copy(update={"held_out": share}), output)
        found = {path.name for path in (output / "held_out").iterdir()}
        assert found == ({"shard-00000" + suffix for suffix in record.held_out.written} if share else set())


def test_equal_documents_are_always_on_the_same_side(tmp_path, folder):
    output, config = folder
    (tmp_path / "a.txt").write_text("\n\n".join(f"Kalo {'mi ' * (n % 40)}." for n in range(400)))
    record = build(tmp_path / "a.txt", config.model_copy(update={"held_out": 0.5}), output)
    assert record.books.documents.held_out % 10 == 0
    assert 0 < record.books.documents.held_out < 400


def test_the_seed_does_not_change_what_is_held_out(tmp_path, folder):
    output, config = folder
    (tmp_path / "a.txt").write_text("\n\n".join(f"Kalo {'mi ' * n}." for n in range(100)))
    records = [
        build(tmp_path / "a.txt", config.model_copy(update={"held_out": 0.3, "seed": seed}), output) for seed in (0, 1)
    ]
    assert records[0].books == records[1].books
    assert records[0].train.written != records[1].train.written


def test_the_random_stream_belongs_to_the_shards_key(tmp_path, folder):
    output, config = folder
    content = "Kalo mi ne. " * 400
    files = []
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(content)
        record = build(tmp_path / name, config.model_copy(update={"held_out": 0.0}), output)
        files.append(record.train.written)
    assert files[0] != files[1]


def test_empty_and_malformed_documents_are_accounted_for(tmp_path, folder):
    output, config = folder
    blocks = (b"", b"Ka \xff\xfe lo \xef\xbf\xbd.", b"\x00\x01")
    wiki = b"".join(b"<doc id=''>\n%s\n</doc>\n" % block for block in blocks)
    (tmp_path / "wiki_00").write_bytes(wiki)
    books = build(tmp_path / "wiki_00", config.model_copy(update={"held_out": 0.0}), output).books
    assert books.documents.model_dump() == {"read": 3, "train": 1, "held_out": 0, "dropped": {"empty": 2}}
    assert books.balances
    assert books.invalid_utf8 == 2


def test_a_range_without_text_makes_no_files(tmp_path, folder):
    output, config = folder
    (tmp_path / "wiki_00").write_text('<doc id="1">\n</doc>\n')
    record = build(tmp_path / "wiki_00", config, output)
    assert record.train is record.held_out is None
    assert not list(output.glob("**/shard-*"))


def test_held_out_text_is_in_its_own_folder(built):
    main, held_out = load_manifest(built), load_manifest(built / HELD_OUT_NAME)
    assert held_out.totals.sequences > 0
    assert main.books == held_out.books
    assert main.books.word_pieces.held_out == held_out.totals.word_pieces


@pytest.fixture
def books_of(built, tmp_path):
    """Writes files, builds them as one shard, and returns its ledger."""
    manifest = load_manifest(built)
    (tmp_path / "out").mkdir()
    prepare(tmp_path / "out", SubwordTokenizer.load(built / "tokenizer"), load_model(built / "punkt"))

    def build(files, *, duplicates=None, **changes):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        inputs = sorted({(tmp_path / name).parent for name in files})
        [(_, chunks)] = read_shards(find_sources(inputs), 1e9, Reading())
        config = manifest.config.model_copy(update={"held_out": 0.0} | changes)
        return build_shard("shard-00000", "", iter(chunks), duplicates or {}, config, tmp_path / "out").books

    return build


JSON = b"""{"text": "Ka lo mi."}
{"text": null}
{"text": "   "}
{"text": "a\\u0000\\r\\nb \\ufeffKa."}
{broken
{"text": "\\u0001"}
"""
PAGE = b"<page><ns>%d</ns>%s<text>%s</text></page>"
DUMP = b"<mediawiki>" + b"".join(
    [
        PAGE % (0, b"", b"'''Kalo''' [[mi|ne]]{{x}}."),
        PAGE % (0, b"<redirect />", b"#REDIRECT [[x]]"),
        PAGE % (4, b"", b"Talk."),
        PAGE % (0, b"", b"{{only a template}}"),
        b"<page><ns>0</ns><text>Ka lo",
    ]
)


def test_every_document_and_character_is_accounted_for_by_reason(books_of):
    books = books_of({"in/a.jsonl": JSON, "in/b.xml": DUMP, "in/c.txt": b"\xef\xbb\xbfKa \xff.\r\nLo.\n\nMi.\n"})
    assert books.balances
    assert books.documents.dropped == {
        "empty": 3,
        "malformed_record": 1,
        "no_text": 1,
        "other_namespace": 1,
        "redirect": 1,
        "unfinished_page": 1,
    }
    assert books.documents.read == 13
    assert books.documents.train == 5
    assert books.characters.dropped["markup"] == len("''''''[[mi|]]{{x}}") + len("{{only a template}}")
    assert books.characters.dropped["redirect"] == len("#REDIRECT [[x]]")
    assert books.characters.dropped["byte_order_mark"] == 2
    assert books.characters.dropped["carriage_return"] == 2
    assert books.invalid_utf8 == 1


def test_the_mixture_tells_how_much_of_each_input_is_in_the_shards(books_of):
    books = books_of({"books/a.txt": b"Ka lo.\n\nMi.", "wiki/a.txt": b"Ne ru so.\n\n\x01"})
    assert {name: share.documents for name, share in books.inputs.items()} == {"0 books": 2, "1 wiki": 1}
    assert sum(share.word_pieces for share in books.inputs.values()) == books.word_pieces.train
    assert sum(share.characters for share in books.inputs.values()) == books.characters.train


def test_duplicates_are_dropped_by_their_number_in_the_shard(books_of):
    books = books_of(
        {"in/a.txt": b"Ka.\n\nLo.", "in/b.txt": b"Ka.\n\nMi."}, duplicates={0: "near_duplicate", 2: "duplicate"}
    )
    assert books.documents.dropped == {"duplicate": 1, "near_duplicate": 1}
    assert books.characters.dropped == {"duplicate": 3, "near_duplicate": 3}
    assert books.balances


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
