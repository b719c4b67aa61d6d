"""Claims about reading documents from each format, and about tables of documents."""

import html
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from data_prep import formats
from data_prep.formats import Document, Format, Reading, cut_point, format_of, parse, read_rows, split_long
from data_prep.sources import find_sources
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import documents_of, peak_of_reading, read_shards


def contents(form: Format, text: bytes, column: str = "text") -> list[bytes]:
    return [document.content for document in parse(form, text, 0, Reading(text_column=column))]


@pytest.mark.parametrize(
    ("name", "beginning", "expected"),
    [
        ("a.txt", b"Text", Format.TEXT),
        ("a.txt", b"", Format.TEXT),
        ("wiki_00", b'\xef\xbb\xbf\n<doc id="1">', Format.WIKI_EXTRACTOR),
        ("wiki_00", b'{"id": "1"', Format.JSON_LINES),
        ("a.txt", b'{"id": "1"', Format.TEXT),
        ("a.jsonl.gz", b'{"id": "1"', Format.JSON_LINES),
        ("a.xml-p1p2.bz2", b"<mediawiki xmlns=", Format.MEDIAWIKI),
        ("a.xml", b"<?xml version='1.0'?>\n<mediawiki>", Format.MEDIAWIKI),
    ],
)
def test_a_format_is_recognized_by_the_beginning_of_a_file(name: str, beginning: bytes, expected: Format) -> None:
    assert format_of(Path(name), beginning, "blank_line") is expected


@pytest.mark.parametrize(
    ("name", "beginning", "reason"),
    [
        ("a.xml", b"<html>", "<mediawiki"),
        ("a.json", b'[{"text": "an array"}]', "one object per line"),
        ("a.json", b'{\r\n  "text": "over several lines"\r\n}\r\n', "one object per line"),
        ("wiki_00", b'{\n  "text": "over several lines"\n}\n', "one object per line"),
        ("a.parquet", b"Text", "not a Parquet file"),
        ("a.txt.gz", b"PAR1", "compressed as a whole; unpack"),
        ("a.txt", "Text".encode("utf-16"), "UTF-16"),
        ("a.txt", ("Text " * 9).encode("utf-16-le"), "holds binary data instead of text"),
        ("a.txt.gz", b"\x1f\x8b\x08", "holds gzip data instead of text"),
        ("a.jsonl", b"PK\x03\x04", "holds zip data instead of text"),
    ],
)
def test_unreadable_content_is_refused_in_one_clear_line(name: str, beginning: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        format_of(Path(name), beginning, "blank_line")
    assert name in str(caught.value)


def test_json_lines_give_their_text_and_those_without_are_counted() -> None:
    lines = ['{"text": " a\\nb "}', "", '{"text": null}', "{broken", '{"id": 1}', "[" * 5000, '{"text": ""}', "7"]
    found = list(parse(Format.JSON_LINES, "\n".join(lines).encode(), 0, Reading()))
    assert [document.reason for document in found] == [
        *(None, "no_text", "malformed_record", "no_text", "malformed_record", None, "malformed_record")
    ]
    assert found[0].content == b"a\nb"
    assert found[5].content == b""


def test_any_key_may_hold_the_text_and_a_missing_key_is_named_with_the_existing_ones() -> None:
    line = json.dumps({"id": 1, "body": "Text"}).encode()
    assert contents(Format.JSON_LINES, line, "body") == [b"Text"]
    with pytest.raises(ConfigError, match=r"text_column: text is not among.*body"):
        contents(Format.JSON_LINES, line)


def test_malformed_utf8_in_json_reaches_the_cleaning() -> None:
    line = b'{"text": "a\xff \xe2\x82 \\ud800 \\udcff \\ud83d\\ude00"}'
    assert contents(Format.JSON_LINES, line) == [b"a\xff \xe2\x82 \xff \xff " + "\U0001f600".encode()]


def test_skipped_and_truncated_pages_have_a_reason() -> None:
    page = b"<page><ns>%d</ns><text>%s</text></page>\n"
    text = b"<mediawiki><siteinfo/>" + page % (0, b"A") + page % (1, b"B") + b"<page><ns>0</ns><text>C"
    found = list(parse(Format.MEDIAWIKI, text, 0, Reading()))
    assert [(document.content, document.reason) for document in found] == [
        *((b"A", None), (b"B", "other_namespace"), (b"C", "unfinished_page"))
    ]
    assert text[found[1].place :].startswith(b"<page><ns>1")
    assert len(contents(Format.MEDIAWIKI, page % (0, b"A") + b"</mediawiki>\n")) == 1


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Format.TEXT, b"\n\n One.\nStill.\n \t\n\n  Two.\n"),
        (Format.ONE_DOCUMENT, b"\n\n One.\n\nTwo."),
        (Format.WIKI_EXTRACTOR, b"<doc id='1'>\nOne.\n\nTwo.\n</doc>\n<doc id='2'>Three.\n</doc>"),
    ],
)
def test_a_documents_reported_place_is_where_it_begins(form: Format, text: bytes) -> None:
    found = list(parse(form, text, 1000, Reading()))
    assert len(found) == {Format.TEXT: 2, Format.ONE_DOCUMENT: 1, Format.WIKI_EXTRACTOR: 2}[form]
    assert all(text[document.place - 1000 :].lstrip().startswith(document.content) for document in found)


def test_what_wikiextractor_escaped_is_decoded_once() -> None:
    text = "R&D, 3 < 5 > 2, &lt;b&gt; &amp; &eacute;"
    page = f"<doc id='1' title='a'>\n{html.escape(text, quote=False)}\n</doc>".encode()
    [document] = parse(Format.WIKI_EXTRACTOR, page, 0, Reading())
    assert document.content == text.encode()
    assert page[document.place :].startswith(b"R&amp;D")


@pytest.mark.parametrize(
    ("text", "cut"),
    [(b"one\ntwo three", 4), (b"one two", 4), (b"abcdef", 5), ("a\u20ac".encode()[:-1], 1), (b"\x80" * 9, 9)],
)
def test_text_is_divided_at_a_line_a_space_or_between_characters(text: bytes, cut: int) -> None:
    assert cut_point(text) == cut


@pytest.mark.parametrize(("limit", "wikitext"), [("LONGEST_DOCUMENT", False), ("LONGEST_PAGE", True)])
def test_a_long_document_becomes_parts_without_loss(
    limit: str, wikitext: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, limit, 100)
    content = b"".join(b"Line %d.\n" % number for number in range(100))
    parts = list(split_long(Document(content, 5, wikitext=wikitext)))
    assert b"".join(part.content for part in parts) == content
    assert max(len(part.content) for part in parts) <= 100
    assert [part.cut for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [part.place for part in parts][:2] == [5, 5 + len(parts[0].content)]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Format.JSON_LINES, b'{"text": "Ka."}'),
        (Format.WIKI_EXTRACTOR, b"<doc id='1'>Ka.</doc>"),
        (Format.MEDIAWIKI, b"<mediawiki><page><text>Ka.</text></page>"),
    ],
)
def test_a_byte_order_mark_before_markup_is_not_part_of_a_document(form: Format, text: bytes) -> None:
    [document] = parse(form, b"\xef\xbb\xbf" + text, 0, Reading())
    assert document.content == b"Ka."


def test_a_byte_order_mark_before_plain_text_is_left_to_the_cleaning_and_starts_no_new_document() -> None:
    [marked], [plain] = (parse(Format.TEXT, mark + b"Ka.", 0, Reading()) for mark in (b"\xef\xbb\xbf", b""))
    assert marked.content == b"\xef\xbb\xbfKa."
    assert marked.digest == plain.digest


TEXTS = [f"Text {number}. " + "word " * (number % 50) for number in range(1000)]


def write(path: Path, columns: dict[str, Any], **settings: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path, **settings)
    return path


def rows_of(path: Path, column: str = "text") -> list[bytes | None]:
    return list(read_rows(path, 0, None, column))


@pytest.mark.parametrize("rows", [7, 1000])
def test_every_row_of_every_group_is_read_in_order(tmp_path: Path, rows: int) -> None:
    path = write(tmp_path / "a.parquet", {"id": list(range(1000)), "text": TEXTS}, row_group_size=rows)
    assert rows_of(path) == [text.encode() for text in TEXTS]


@pytest.mark.parametrize(
    "kind",
    [
        *(pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary(), pyarrow.binary_view()),
        *(pyarrow.dictionary(pyarrow.int8(), text) for text in (pyarrow.string(), pyarrow.binary())),
    ],
    ids=str,
)
def test_text_may_have_any_of_arrows_types_and_be_missing(tmp_path: Path, kind: pyarrow.DataType) -> None:
    path = write(tmp_path / "a.parquet", {"body": pyarrow.array(["a", None, "", "a"], kind)})
    assert parquet.read_schema(path).field("body").type == kind
    assert rows_of(path, "body") == [b"a", None, b"", b"a"]


def test_pandas_categories_are_text_also_where_the_file_stops_using_a_dictionary(tmp_path: Path) -> None:
    settings = {"dictionary_pagesize_limit": 1000, "row_group_size": 700, "write_batch_size": 10}
    path = write(tmp_path / "a.parquet", {"text": pyarrow.array(TEXTS).dictionary_encode()}, **settings)
    assert rows_of(path) == [text.encode() for text in TEXTS]


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary()])
def test_text_may_have_any_encoding_and_begin_alike_in_every_row(
    tmp_path: Path, kind: pyarrow.DataType, encoding: str
) -> None:
    texts = [None, *("The same beginning of every text. " * 20 + text for text in TEXTS)]
    settings = {"use_dictionary": False, "column_encoding": {"text": encoding}, "data_page_version": "2.0"}
    path = write(tmp_path / "a.parquet", {"id": [*range(1001)], "text": pyarrow.array(texts, kind)}, **settings)
    assert rows_of(path) == [text and text.encode() for text in texts]


def test_two_columns_of_one_name_are_one_line(tmp_path: Path) -> None:
    table = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"text_column: .*a\.parquet has 2 columns named text; rename all but one$"):
        rows_of(tmp_path / "a.parquet")


def test_a_chunk_holds_about_its_budget_of_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": [*TEXTS, None]})
    [(_, chunks)] = read_shards(find_sources([tmp_path]), 1e9, Reading(), 10_000)
    documents = documents_of(chunks)
    assert [document.content.decode() for document in documents] == [*(text.strip() for text in TEXTS), ""]
    assert documents[-1].reason == "no_text"
    assert 10 < len(chunks) == len({chunk.place for chunk in chunks})


TABLE = {"id": [1], "body": ["a"], "title": ["b"]}


@pytest.mark.parametrize(
    ("columns", "column", "said"),
    [
        (TABLE, "text", "no text column named text; name one of its text columns: body, title$"),
        (TABLE, "id", "no text column named id; name one of its text columns: body, title$"),
        ({"id": [1]}, "text", "no text column named text; it has none at all: replace it$"),
        *(({"text": [value]}, "text", "no text column named text") for value in (["a"], {"a": "b"}, 1)),
    ],
)
def test_a_column_that_is_missing_or_no_text_is_named_with_those_that_are(
    tmp_path: Path, columns: dict[str, list[object]], column: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        rows_of(write(tmp_path / "a.parquet", columns), column)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_damaged_file_is_named(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "a.parquet", {"text": TEXTS})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read"):
        rows_of(path)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("others", [0, 200])
def test_a_row_group_or_a_text_too_large_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dictionary: bool, others: int
) -> None:
    texts = ["Ka lo mi."] * others + ["Ka lo mi. " * 300_000]
    path = write(tmp_path / "a.parquet", {"text": texts}, use_dictionary=dictionary)
    assert len(rows_of(path)) == others + 1
    monkeypatch.setattr("data_prep.formats.LONGEST_RECORD", 2_000_000)
    with pytest.raises(ConfigError, match=r"a\.parquet has a text of 2 MiB, expected at most 1 MiB: too large"):
        rows_of(path)
    monkeypatch.setattr("data_prep.formats._LARGEST_GROUP", 2_500_000)
    with pytest.raises(ConfigError, match=r"a\.parquet has a row group with 2 MiB of text, expected at most 2: too"):
        rows_of(path)


@pytest.mark.parametrize(
    ("texts", "end", "most"),
    [
        (["a"] * 50 + ["Ka lo mi. " * 30_000_000], "refused", 200),  # 300 MB, which used to take 1.6 GB of memory
        (["a", "Ka lo mi. " * 3_300_000], "read", 700),
        pytest.param(  # one long text in the dictionary, referred to by every row: 1.1 GB
            ["Ka lo mi. " * 3_300_000] * 64, "read", 700, marks=pytest.mark.long
        ),
    ],
    ids=["too large", "the largest", "repeated"],
)
def test_a_text_of_any_size_takes_less_than_a_gigabyte(tmp_path: Path, texts: list[str], end: str, most: int) -> None:
    write(tmp_path / "a.parquet", {"text": pyarrow.array(texts, pyarrow.large_string())})
    del texts
    ended, peak = peak_of_reading(tmp_path / "a.parquet")
    assert ended == end and peak < most
