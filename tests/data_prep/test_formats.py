"""Claims about reading documents from each format."""

import html
import json
from pathlib import Path

import pytest

from data_prep import formats
from data_prep.formats import Document, Format, Reading, cut_point, format_of, parse, split_long
from electra_sampler.foundation.config import ConfigError


def contents(form, text, **reading):
    return [document.content for document in parse(form, text, 0, Reading(**reading))]


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
def test_a_format_is_recognized_by_the_beginning_of_a_file(name, beginning, expected):
    assert format_of(Path(name), beginning, "blank_line") is expected


@pytest.mark.parametrize(
    ("name", "beginning", "reason"),
    [
        ("a.xml", b"<html>", "<mediawiki"),
        ("a.json", b'[{"text": "an array"}]', "one object per line"),
        ("a.parquet", b"Text", "not a Parquet file"),
        ("a.txt.gz", b"PAR1", "compressed as a whole; unpack"),
        ("a.txt", "Text".encode("utf-16"), "UTF-16"),
        ("a.txt", ("Text " * 9).encode("utf-16-le"), "holds binary data instead of text"),
        ("a.txt.gz", b"\x1f\x8b\x08", "holds gzip data instead of text"),
        ("a.jsonl", b"PK\x03\x04", "holds zip data instead of text"),
    ],
)
def test_unreadable_content_is_refused_in_one_clear_line(name, beginning, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        format_of(Path(name), beginning, "blank_line")
    assert name in str(caught.value)


def test_json_lines_give_their_text_and_those_without_are_counted():
    lines = ['{"text": " a\\nb "}', "", '{"text": null}', "{broken", '{"id": 1}', "[" * 5000, '{"text": ""}', "7"]
    found = list(parse(Format.JSON_LINES, "\n".join(lines).encode(), 0, Reading()))
    assert [document.reason for document in found] == [
        *(None, "no_text", "malformed_record", "no_text", "malformed_record", None, "malformed_record")
    ]
    assert found[0].content == b"a\nb"
    assert found[5].content == b""


def test_any_key_may_hold_the_text_and_a_missing_key_is_named_with_the_existing_ones():
    line = json.dumps({"id": 1, "body": "Text"}).encode()
    assert contents(Format.JSON_LINES, line, text_column="body") == [b"Text"]
    with pytest.raises(ConfigError, match=r"text_column: text is not among.*body"):
        contents(Format.JSON_LINES, line)


def test_malformed_utf8_in_json_reaches_the_cleaning():
    [document] = parse(Format.JSON_LINES, b'{"text": "a\xff \\ud800 b"}', 0, Reading())
    with pytest.raises(UnicodeDecodeError):
        document.content.decode()


def test_skipped_and_truncated_pages_have_a_reason():
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
def test_a_documents_reported_place_is_where_it_begins(form, text):
    found = list(parse(form, text, 1000, Reading()))
    assert len(found) == {Format.TEXT: 2, Format.ONE_DOCUMENT: 1, Format.WIKI_EXTRACTOR: 2}[form]
    for document in found:
        assert text[document.place - 1000 :].lstrip().startswith(document.content)


def test_what_wikiextractor_escaped_is_decoded_once():
    text = "R&D, 3 < 5 > 2, &lt;b&gt; &amp; &eacute;"
    page = f"<doc id='1' title='a'>\n{html.escape(text, quote=False)}\n</doc>".encode()
    [document] = parse(Format.WIKI_EXTRACTOR, page, 0, Reading())
    assert document.content == text.encode()
    assert page[document.place :].startswith(b"R&amp;D")


@pytest.mark.parametrize(
    ("text", "cut"),
    [(b"one\ntwo three", 4), (b"one two", 4), (b"abcdef", 5), ("a\u20ac".encode()[:-1], 1), (b"\x80" * 9, 9)],
)
def test_text_is_divided_at_a_line_a_space_or_between_characters(text, cut):
    assert cut_point(text) == cut


def test_a_long_document_becomes_parts_without_loss(monkeypatch):
    monkeypatch.setattr(formats, "LONGEST_DOCUMENT", 100)
    content = b"".join(b"Line %d.\n" % number for number in range(100))
    parts = list(split_long(Document(content, 5)))
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
def test_a_byte_order_mark_before_markup_is_not_part_of_a_document(form, text):
    [document] = parse(form, b"\xef\xbb\xbf" + text, 0, Reading())
    assert document.content == b"Ka."


def test_a_byte_order_mark_before_plain_text_is_left_to_the_cleaning_and_starts_no_new_document():
    [marked], [plain] = (parse(Format.TEXT, mark + b"Ka.", 0, Reading()) for mark in (b"\xef\xbb\xbf", b""))
    assert marked.content == b"\xef\xbb\xbfKa."
    assert marked.digest == plain.digest
