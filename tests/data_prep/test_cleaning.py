"""Claims about the cleaning of documents."""

import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.cleaning import LONGEST_LINE, _long_runs, clean, decode


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
def test_removed_characters_are_counted_by_reason(content, text, removed):
    cleaned = clean(content.encode(), frozenset() if "[[" in content else None)
    assert cleaned.text == text
    assert cleaned.removed == removed
    assert cleaned.read == len(content)
    assert cleaned.kept == len(text)


def test_text_is_normalized_to_nfc_and_its_characters_counted_before():
    cleaned = clean("cafe\u0301 \u0958".encode())
    assert cleaned.text == unicodedata.normalize("NFC", "cafe\u0301 \u0958")
    assert cleaned.normalized
    assert cleaned.read == cleaned.kept == 7
    assert not clean("caf\u00e9".encode()).normalized


def test_a_control_character_does_not_keep_an_accent_from_its_letter():
    assert clean("e\x00\u0301".encode()).text == "\u00e9"


MARKS = [
    mark for mark in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(unicodedata.normalize("NFD", mark)[0])
]


@pytest.mark.parametrize("unit", ["\u0301\u0323", "\u0f73", "\u0344\u0323\u0f75", "\u0323\u0301\u05b0\u3099"])
def test_normalizing_runs_of_combining_marks_takes_linear_time(unit):
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
def test_sorting_long_runs_beforehand_changes_no_text(parts):
    text = "".join(parts) * 4
    assert clean(f"x{text}x".encode()).text == unicodedata.normalize("NFC", f"x{text}x")


def test_every_mark_that_unicode_reorders_is_part_of_a_run():
    for mark in MARKS:
        assert _long_runs().fullmatch(mark * 31), f"{ord(mark):x}"
    assert not _long_runs().search("e\u00e9\u1100\u0915 " * 31)


def test_malformed_utf8_is_replaced_and_counted():
    cleaned = decode(b"ab\xffcd\xe2\x82 \xef\xbf\xbd")
    assert cleaned.text == "ab\ufffdcd\ufffd \ufffd"
    assert cleaned.invalid_utf8 == 2
    assert decode("ab\ufffd".encode()).invalid_utf8 == 0


@pytest.mark.parametrize("line", ["word " * 50_000, "x" * 250_001, "x" * 150_000 + " y" * 40_000])
def test_a_line_that_is_too_long_is_broken_at_white_space_if_there_is_any(line):
    cleaned = clean(f"before\n{line}\nafter".encode())
    lines = cleaned.text.split("\n")
    assert max(map(len, lines)) <= LONGEST_LINE
    assert "".join(lines) == f"before{line}after"
    assert cleaned.cut_lines == len(lines) - 3 > 0
    assert cleaned.kept == len(line) + 13
    if line.startswith("word"):
        assert all(part.endswith("word ") for part in lines[1:-1])


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_any_bytes_become_valid_nfc_text_with_all_characters_accounted_for(content):
    cleaned = clean(content)
    cleaned.text.encode()
    assert unicodedata.is_normalized("NFC", cleaned.text)
    assert cleaned.read == cleaned.kept + sum(cleaned.removed.values())
    assert min(cleaned.removed.values(), default=1) > 0
    assert "\r" not in cleaned.text
    assert "\x00" not in cleaned.text
