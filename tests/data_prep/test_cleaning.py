"""Claims about the cleaning of documents, and about the plain text of MediaWiki pages."""

import bz2
import re
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.cleaning import (
    _LONGEST_SECTION,
    _MOST_UNCLOSED,
    LONGEST_LINE,
    _long_runs,
    _sections,
    _unclosed,
    clean,
    decode,
    plain_text,
)
from data_prep.curation.curator import Curator
from data_prep.formats import Reading, page_text, wiki_asides
from data_prep.manifest import BuildConfig
from data_prep.pipeline import Intake
from data_prep.planning import Range
from data_prep.reading import Reader, sample_chunks, sample_documents
from data_prep.sources import find_sources
from tests.data_prep.conftest import documents_of


@pytest.mark.parametrize(
    ("content", "text", "removed"),
    [
        ("plain", "plain", {}),
        ("a\r\nb\rc\n", "a\nb\nc\n", {"carriage_return": 1}),
        ("\ufeffa\ufeffb", "ab", {"byte_order_mark": 2}),
        ("a\x00b\x07c\x7f\x9fd", "abcd", {"control": 4}),
        ("a\tb\nc\x0cd", "a\tb\nc\x0cd", {}),
        ("[[a|b]] {{c}}", "b", {"markup": 12}),
    ],
)
def test_removed_characters_are_counted_by_reason(content: str, text: str, removed: dict[str, int]) -> None:
    cleaned = clean(content.encode(), frozenset() if "[[" in content else None)
    assert (cleaned.text, cleaned.removed, cleaned.read, cleaned.kept) == (text, removed, len(content), len(text))


def test_text_is_normalized_to_nfc_and_its_characters_counted_before() -> None:
    cleaned = clean("cafe\u0301 \u0958".encode())
    assert cleaned.text == unicodedata.normalize("NFC", "cafe\u0301 \u0958")
    assert cleaned.normalized
    assert cleaned.read == cleaned.kept == 7
    assert not clean("caf\u00e9".encode()).normalized


def test_a_control_character_does_not_keep_an_accent_from_its_letter() -> None:
    assert clean("e\x00\u0301".encode()).text == "\u00e9"


MARKS = [
    mark for mark in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(unicodedata.normalize("NFD", mark)[0])
]


@pytest.mark.parametrize("unit", ["\u0301\u0323", "\u0f73", "\u0344\u0323\u0f75", "\u0323\u0301\u05b0\u3099"])
def test_normalizing_runs_of_combining_marks_takes_linear_time(unit: str) -> None:
    """Python sorts them by insertion: 200 kB of marks in wrong order took 20 seconds."""
    content = ("e" + unit * (200_000 // len(unit.encode())) + " \u00e9" + unit).encode()
    started = time.process_time()
    cleaned = clean(content)
    assert time.process_time() - started < 2
    assert cleaned.normalized and cleaned.removed == {}
    short = "e" + unit * 500
    assert clean(short.encode()).text == unicodedata.normalize("NFC", short)


@given(
    st.lists(st.one_of(st.sampled_from(MARKS), st.sampled_from("ae\u00e9\u1100\u0915 "), st.just("\u0301\u0323" * 20)))
)
def test_sorting_long_runs_beforehand_changes_no_text(parts: list[str]) -> None:
    text = "".join(parts) * 4
    assert clean(f"x{text}x".encode()).text == unicodedata.normalize("NFC", f"x{text}x")


def test_every_mark_that_unicode_reorders_is_part_of_a_run() -> None:
    assert not [f"{ord(mark):x}" for mark in MARKS if not _long_runs().fullmatch(mark * 31)]
    assert not _long_runs().search("e\u00e9\u1100\u0915 " * 31)


def test_malformed_utf8_is_replaced_and_counted() -> None:
    cleaned = decode(b"ab\xffcd\xe2\x82 \xef\xbf\xbd")
    assert (cleaned.text, cleaned.invalid_utf8) == ("ab\ufffdcd\ufffd \ufffd", 2)
    assert decode("ab\ufffd".encode()).invalid_utf8 == 0


@pytest.mark.parametrize("line", ["word " * 50_000, "x" * 250_001, "x" * 150_000 + " y" * 40_000])
def test_a_line_that_is_too_long_is_broken_at_white_space_if_there_is_any(line: str) -> None:
    cleaned = clean(f"before\n{line}\nafter".encode())
    lines = cleaned.text.split("\n")
    assert max(map(len, lines)) <= LONGEST_LINE
    assert "".join(lines) == f"before{line}after"
    assert cleaned.cut_lines == len(lines) - 3 > 0
    assert cleaned.kept == len(line) + 13
    if line.startswith("word"):
        assert all(part.endswith("word ") for part in lines[1:-1])


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_any_bytes_become_valid_nfc_text_with_all_characters_accounted_for(content: bytes) -> None:
    cleaned = clean(content)
    cleaned.text.encode()
    assert unicodedata.is_normalized("NFC", cleaned.text)
    assert cleaned.read == cleaned.kept + sum(cleaned.removed.values())
    assert min(cleaned.removed.values(), default=1) > 0
    assert not {"\r", "\x00"} & {*cleaned.text}


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Bold''' and ''italic''.", "Bold and italic."),
        ("A [[link]], a [[page|named one]], [http://x.org a site].", "A link, a named one, a site."),
        ("[[File:a.png|thumb|A [[caption]]]]Text[[Category:Things]][[de:Ding]]", "Text"),
        ("[[Bild:a.png|mini|rechts|Ein {{x}} [[Dorf]]]]Text[[Изображение:a.JPG |мини|{{x|y}}]][[Bild:b.svg]]", "Text"),
        ("[[CSI: NY|{{lang|en|CSI}} in ''NY'']], [[:Bild:a.png|b]], [[s:Faust|Faust|I]].", "in NY, b, Faust|I."),
        ("See [[:Category:Things]].", "See Category:Things."),
        ("[[CSI: Miami]], [[UFO: Enemy|UFO]], [[Re:Zero]].", "CSI: Miami, UFO, Re:Zero."),
        ("Kept.[[zh-min-nan:X]][[ FILE :a.jpg|b]][[Simple:C]]", "Kept."),
        ("__KEIN_INHALTSVERZEICHNIS__ a __init__ b__БЕЗ_ОГЛ__ __目次__ ____ c", "a __init__ b  ____ c"),
        ("One{{cite|x={{y}}}} two<ref>Book, p. 1</ref> three<ref name=a />.", "One two three."),
        ("Before\n{| class=x\n! a\n|-\n| b [[c]]\n|}\nafter", "Before\n\nafter"),
        ("== Head ==\nText<!-- not this -->\n\n\n\nmore", "Head\nText\n\nmore"),
        ("A&nbsp;B &lt;i&gt; &#1234567890;", "A\xa0B <i> &#1234567890;"),
        ("Athens ({{lang|el|x}}) is<br>old __NOTOC__", "Athens is\nold"),
        ("x<math>a^2</math> <gallery>b.png</gallery><nowiki>[[c]]</nowiki>", "x [[c]]"),
        ("{{" * 3000, "{{" * 3000),
        ("[[" * 3000 + "a", "[[" * 3000 + "a"),
        ("<b>" * 2000, "<b>" * 2000),
    ],
)
def test_only_running_text_remains(wikitext: str, text: str) -> None:
    assert plain_text(wikitext) == text


def test_sections_are_divided_at_headings_and_limited_in_length() -> None:
    wikitext = "Lead.\n== A ==\n" + "A line.\n" * 5000 + "=== B ===\nx"
    sections = list(_sections(wikitext))
    assert "".join(sections) == wikitext
    assert max(map(len, sections)) <= _LONGEST_SECTION
    assert sections[0] == "Lead.\n"
    assert sections[-1] == "=== B ===\nx"
    assert all(section.endswith("\n") for section in sections[:-1])


UNCLOSED = [
    *("{|\n|-\n| a\n", "{|\n|-\n! a || b\n", "{|\n{{a|", "{|\n", "{{a|[[b|<ref>{|\n", "[[a|", "<ref>", "<ref {{"),
    *("<div>", "<div class=", '<div class="', "<br ", "<!-- [http://a "),
]


@pytest.mark.parametrize("unit", UNCLOSED)
def test_unclosed_markup_takes_linear_time_and_loses_no_text(unit: str) -> None:
    """Tables of 16 kB took 17 seconds before they were divided."""
    started = time.process_time()
    text = plain_text("Before.\n" + unit * (40_000 // len(unit)) + "\nafter")
    assert time.process_time() - started < 10
    assert text.startswith("Before.") and text.endswith("after")


@pytest.mark.parametrize("unit", [*UNCLOSED, "{{a|b}} [[c]] <ref>d</ref>\n{|\n| e\n|}\n"])
def test_a_section_is_divided_only_because_of_unclosed_markup(unit: str) -> None:
    section = unit * (_LONGEST_SECTION // len(unit))
    assert "".join(_sections(section)) == section
    assert (max(map(len, _sections(section))) <= 512) == (unit in UNCLOSED)


@pytest.mark.parametrize(
    ("section", "detours"),
    [
        ("{{a|{{b}}}} [[c|[[d]]]] <ref>e</ref> <ref name=f /> {|\n|{{g|}}\n|}", 0),
        ("<br>a<li>b<br />", 0),
        ("ab{{cd", 4),
        ("{|\n<div>\n|} a", 6),  # the end of the table is found, so the tag costs no more than the table
        ("[http://a b] [http://c [[d]]", 15),
        ("|} }} ]] ] --> </div> />", 0),
    ],
)
def test_unclosed_markup_is_weighted_by_the_length_of_its_search(section: str, detours: int) -> None:
    assert _unclosed(section) == detours


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (b"<ns>0</ns><text>a &lt;b&gt; &amp;amp; </text>", (b"a <b> &amp;", None)),
        (b"<ns>0</ns><redirect title='x' /><text>#REDIRECT</text>", (b"#REDIRECT", "redirect")),
        (b"<ns>10</ns><redirect title='x' /><text>t</text>", (b"t", "other_namespace")),
        (b"<ns>0</ns><text>old</text><text bytes='3' xml:space='preserve'>new</text>", (b"new", None)),
        (b"<ns>0</ns><text bytes='0' />", (b"", None)),
        (b"<ns>0</ns><text>a\xff \xe2\x82 &amp; &#xD800;</text>", (b"a\xff \xe2\x82 & \xef\xbf\xbd", None)),
        (b"", (b"", None)),
    ],
)
def test_a_page_gives_its_newest_text_or_the_reason_it_is_not_an_article(
    page: bytes, expected: tuple[bytes, str | None]
) -> None:
    assert page_text(page) == expected


BUILD = BuildConfig(tokenizer_sha256="", sentences="line", punkt="none", punkt_sha256="")
DUMP = """<mediawiki xml:lang="de"><siteinfo><namespaces>
<namespace key="0" case="first-letter" /><namespace key="2" case="first-letter">Benutzer</namespace>
<namespace key="6" case="first-letter">Datei</namespace><namespace key="14" case="first-letter">Kategorie</namespace>
</namespaces></siteinfo>%s</mediawiki>"""
PAGE = "<page><ns>0</ns><text>Ein Dorf.[[datei:a.jpg|mini|b]] [[Benutzer:A|A]] [[Kategorie:Ort]]</text></page>\n"


@pytest.mark.parametrize("pack", [bytes, bz2.compress])
def test_a_dumps_own_names_of_namespaces_count_on_every_page(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "dewiki.xml").write_bytes(pack((DUMP % (PAGE * 30)).encode()))
    sources = find_sources([tmp_path])
    assert {*sample_documents(sources, 10_000, Reading())} == {"Ein Dorf. A"}
    later = next(Reader(Reading()).chunks(Range(sources[0], start=1000)))
    texts = [text.cleaned.text for text in Intake(iter([later]), {}, BUILD, Curator()).kept()]
    assert texts and {*texts} == {"Ein Dorf. A"}


def test_a_real_dump_gives_articles_without_markup(shared_data: Path) -> None:
    sources = find_sources([shared_data / "wiki" / "enwiki-pages-articles-sample.xml.bz2"])
    documents = documents_of([next(sample_chunks(sources, 1_000_000, Reading()))])
    assert [document.reason for document in documents].count("redirect") > 5
    texts = [
        clean(document.content, wiki_asides(sources[0].path)).text for document in documents if document.reason is None
    ]
    wikitext = "\n".join(document.content.decode() for document in documents)
    assert max(map(_unclosed, _sections(wikitext))) < _MOST_UNCLOSED / 20, "real sections would be cut"
    assert texts[0].startswith("Anarchism is a political philosophy that advocates self-governed societies")
    assert not re.search(r"\{\{|\}\}|\[\[|<ref|'''|\{\||<br|&nbsp;", "\n".join(texts))
