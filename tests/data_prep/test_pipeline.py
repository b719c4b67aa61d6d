"""Claims about turning the text of one shard into its files, and about accounting for each of its documents."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from data_prep import pipeline
from data_prep.manifest import HELD_OUT_NAME, BuildConfig, load_manifest
from data_prep.output import ShardRecord, prepare
from data_prep.pipeline import Side, build_shard
from data_prep.sentences import Punkt, load_model, split_sentences
from data_prep.shards import IndexedFile, file_problems
from data_prep.sources import find_sources
from data_prep.tokens import SubwordTokenizer
from tests.data_prep.conftest import PARAGRAPHS, read_shards


@pytest.fixture(scope="module")
def tokenizer(built: Path) -> SubwordTokenizer:
    return SubwordTokenizer.load(built / "tokenizer")


@pytest.fixture(scope="module")
def config(built: Path) -> BuildConfig:
    return load_manifest(built).config


@pytest.fixture
def output(built: Path, tokenizer: SubwordTokenizer, tmp_path: Path) -> Path:
    """An output folder with the tokenizer and Punkt model of the shared build."""
    prepare(tmp_path / "out", tokenizer, load_model(built / "punkt"))
    return tmp_path / "out"


Build = Callable[..., ShardRecord]


@pytest.fixture
def build(config: BuildConfig, output: Path, tmp_path: Path) -> Build:
    """Writes files below `in/`, builds them as one shard, and returns its record."""

    def record(files: Mapping[str, bytes], copies: Mapping[int, str] = {}, **changes: object) -> ShardRecord:
        for name, content in files.items():
            (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / name).write_bytes(content)
        inputs = sorted({(tmp_path / "in" / name).parent for name in files})
        [(shard, chunks)] = read_shards(find_sources(inputs), 1e9, PARAGRAPHS)
        changed = config.model_copy(update={"held_out": 0.0} | changes)
        return build_shard(shard.name, shard.ranges[0].key, iter(chunks), copies, changed, output)

    return record


def text_ids(folder: Path, tokenizer: SubwordTokenizer) -> np.ndarray:
    """The ids of all sequences, without special tokens."""
    ids = IndexedFile(folder / "shard-00000").data
    return ids[~np.isin(ids, (tokenizer.special.cls, tokenizer.special.sep))]


@pytest.mark.parametrize("content", ["Kalo mi.\nNe ru so.\n\nTa vu.", "ka. " * 3000, "\n\n".join(["Lo mi."] * 900)])
def test_every_word_piece_of_the_text_is_in_the_shard(
    content: str, build: Build, output: Path, tokenizer: SubwordTokenizer
) -> None:
    record = build({"a.txt": content.encode()})
    punkt = Punkt(load_model(output / "punkt"))
    expected, _ = tokenizer.encode([s for document in content.split("\n\n") for s in split_sentences(document, punkt)])
    assert np.array_equal(text_ids(output, tokenizer), expected)
    assert record.train is not None and record.train.word_pieces == len(expected)
    assert record.held_out is None
    assert not (output / "held_out" / "shard-00000.bin").exists()


DOCUMENTS = b"\n\n".join(b"Kalo %b." % (b"mi " * n) for n in range(100))


def test_a_shard_without_held_out_text_leaves_no_file_of_an_earlier_one_that_had_some(
    build: Build, output: Path
) -> None:
    some = build({"a.txt": DOCUMENTS}, held_out=0.5).held_out
    assert some is not None
    assert {path.name for path in (output / "held_out").iterdir()} == {some.name + suffix for suffix in some.written}
    build({"a.txt": DOCUMENTS}, held_out=0.0)
    assert not list((output / "held_out").iterdir())


def test_equal_documents_are_always_on_the_same_side_and_about_the_share_asked_for_is_held_out(build: Build) -> None:
    content = b"\n\n".join(b"Kalo %b." % (b"mi " * (n % 40)) for n in range(400))
    held_out = build({"a.txt": content}, held_out=0.5).books.documents.held_out
    assert held_out % 10 == 0
    assert 150 <= held_out <= 250


def test_the_seed_does_not_change_what_is_held_out(build: Build) -> None:
    one, other = (build({"a.txt": DOCUMENTS}, held_out=0.3, seed=seed) for seed in (0, 1))
    assert one.books == other.books
    assert one.train is not None and other.train is not None
    assert one.train.written != other.train.written


def test_the_random_stream_belongs_to_the_shards_key(build: Build) -> None:
    one, other = (build({f"{name}/{name}.txt": b"Kalo mi ne. " * 400}).train for name in "ab")
    assert one is not None and other is not None
    assert one.word_pieces == other.word_pieces
    assert one.written[".mask.bin"] != other.written[".mask.bin"]


def test_a_range_without_text_makes_no_files(build: Build, output: Path) -> None:
    record = build({"wiki_00": b'<doc id="1">\n</doc>\n'}, held_out=0.1)
    assert record.train is record.held_out is None
    assert not list(output.glob("**/shard-*"))


def test_held_out_text_is_in_its_own_folder(built: Path) -> None:
    main, held_out = load_manifest(built), load_manifest(built / HELD_OUT_NAME)
    assert held_out.totals.sequences > 0
    assert main.books == held_out.books
    assert main.books.word_pieces.held_out == held_out.totals.word_pieces


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


def test_every_document_and_character_is_accounted_for_by_reason(build: Build) -> None:
    books = build({"a.jsonl": JSON, "b.xml": DUMP, "c.txt": b"\xef\xbb\xbfKa \xff.\r\nLo.\n\nMi.\n"}).books
    assert books.balances
    assert books.documents.dropped == {
        "empty": 3,
        "malformed_record": 1,
        "no_text": 1,
        "other_namespace": 1,
        "redirect": 1,
        "unfinished_page": 1,
    }
    assert (books.documents.read, books.documents.train) == (13, 5)
    assert books.characters.dropped["markup"] == len("''''''[[mi|]]{{x}}") + len("{{only a template}}")
    assert books.characters.dropped["redirect"] == len("#REDIRECT [[x]]")
    assert books.characters.dropped["byte_order_mark"] == 2
    assert books.characters.dropped["carriage_return"] == 2
    assert books.invalid_utf8 == 1


def test_the_mixture_tells_how_much_of_each_input_is_in_the_shards(build: Build) -> None:
    books = build({"books/a.txt": b"Ka lo.\n\nMi.", "wiki/a.txt": b"Ne ru so.\n\n\x01"}).books
    assert {name: share.documents for name, share in books.inputs.items()} == {"0 books": 2, "1 wiki": 1}
    assert sum(share.word_pieces for share in books.inputs.values()) == books.word_pieces.train
    assert sum(share.characters for share in books.inputs.values()) == books.characters.train


def test_duplicates_are_dropped_by_their_number_in_the_shard(build: Build) -> None:
    files = {"a.txt": b"Ka.\n\nLo.", "b.txt": b"Ka.\n\nMi."}
    books = build(files, copies={0: "near_duplicate", 2: "duplicate"}).books
    assert books.documents.dropped == {"duplicate": 1, "near_duplicate": 1}
    assert books.characters.dropped == {"duplicate": 3, "near_duplicate": 3}
    assert books.balances


def documents(tokenizer: SubwordTokenizer) -> list[tuple[np.ndarray, np.ndarray]]:
    text = "kalo mi ne ru sota. vu ka lomine. "
    return [tokenizer.encode([text * (1 + number % 30)] * 3) for number in range(50)]


def test_a_side_holds_and_counts_every_document(
    tokenizer: SubwordTokenizer, config: BuildConfig, tmp_path: Path
) -> None:
    side = Side("key", config, tokenizer, tmp_path, "shard-00000")
    for ids, lengths in documents(tokenizer):
        side.add(ids, lengths)
    entry = side.finish()
    expected = np.concatenate([ids for ids, _ in documents(tokenizer)])
    assert np.array_equal(text_ids(tmp_path, tokenizer), expected)
    assert entry is not None and entry.word_pieces == len(expected)
    file, masks = IndexedFile(tmp_path / "shard-00000"), IndexedFile(tmp_path / "shard-00000.mask")
    file.require_sound()
    assert len(file) == len(masks) == entry.sequences
    assert file.lengths.sum() == entry.tokens
    assert not file_problems(tmp_path, entry)
    assert entry.size == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize(("limit", "most"), [("_TOKENS_AT_ONCE", 1000), ("_DOCUMENTS_AT_ONCE", 3)])
def test_memory_does_not_grow_with_the_text_and_no_token_is_lost(
    tokenizer: SubwordTokenizer,
    config: BuildConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    most: int,
) -> None:
    monkeypatch.setattr(pipeline, limit, most)
    side = Side("key", config, tokenizer, tmp_path, "shard-00000")
    for ids, lengths in documents(tokenizer):
        side.add(ids, lengths)
        assert (side._tokens_waiting if limit == "_TOKENS_AT_ONCE" else len(side._waiting)) < most
    side.finish()
    assert np.array_equal(text_ids(tmp_path, tokenizer), np.concatenate([ids for ids, _ in documents(tokenizer)]))
