"""Claims about n-grams shared with evaluation sets, against a search by plain comparison."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.curation.contamination import Contamination, make_index
from electra_sampler.foundation.config import ConfigError

TEXTS = (
    "It 's a charming - and often affecting - journey.",
    "one two three one two three four",
    "six",
    "Été noir, été blanc",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sets") / "set.tsv"
    path.write_text("\n".join(TEXTS), "utf-8")
    return str(path)


def find(path, n, text):
    folder = Path(path).parent / f"{n}"
    if not folder.exists():
        folder.mkdir()
        make_index([path], n).save(folder)
    return Contamination(folder).find(text)


def test_case_and_punctuation_are_of_no_account(path):
    match = find(path, 6, "He said: IT'S A CHARMING, and (often) more.")
    assert match == ("set.tsv", "set.tsv#1", "it s a charming and often")
    assert find(path, 4, "x ÉTÉ NOIR — étéblanc") is None
    assert find(path, 4, "x ÉTÉ NOIR — été_blanc!").example == "set.tsv#4"


def test_composed_and_decomposed_letters_are_equal(path, tmp_path):
    (tmp_path / "d.tsv").write_text(unicodedata.normalize("NFD", TEXTS[3]), "utf-8")
    assert find(str(tmp_path / "d.tsv"), 4, TEXTS[3]).ngram == "été noir été blanc"


def test_words_of_indic_scripts_are_whole_and_letters_of_scripts_without_spaces_are_words(tmp_path):
    (tmp_path / "h.tsv").write_text("छोटी दिल्ली नदी के किनारे\n吾輩は猫である", "utf-8")
    assert find(str(tmp_path / "h.tsv"), 3, "वह दिल्ली नदी तक गया") is None, "two words of five pieces"
    assert find(str(tmp_path / "h.tsv"), 3, "छाटे दिल्ली नादे") is None, "other vowels"
    assert find(str(tmp_path / "h.tsv"), 3, "यह दिल्ली नदी के").ngram == "दिल्ली नदी के"
    assert find(str(tmp_path / "h.tsv"), 6, "その吾輩は猫であり").ngram == "吾 輩 は 猫 で あ"


def test_n_grams_do_not_run_from_one_text_into_the_next(path):
    assert find(path, 3, "affecting journey one") is None
    assert find(path, 3, "four six été") is None
    assert find(path, 1, "SIX") == ("set.tsv", "set.tsv#3", "six")


def test_the_first_match_in_the_document_and_in_the_sets_is_named(path):
    assert find(path, 3, "was two three one two three four").ngram == "two three one"
    assert find(path, 3, "a one two three x").example == "set.tsv#2"


@settings(max_examples=200)
@given(st.lists(st.sampled_from(("one", "two", "three", "four", "five")), max_size=30), st.integers(1, 4))
def test_matches_are_those_of_plain_comparison(path, words, n):
    known = [unicodedata.normalize("NFC", text).lower().replace("'", " ").split() for text in TEXTS[1:3]]
    ngrams = {tuple(text[place : place + n]) for text in known for place in range(len(text) - n + 1)}
    own = [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]
    expected = next((ngram for ngram in own if ngram in ngrams), None)
    found = find(path, n, " ".join(words))
    assert (tuple(found.ngram.split()) if found else None) == expected


def test_short_texts_are_counted(path):
    index = make_index([path], 5)
    assert (index.texts, index.short) == (4, 2)


def test_texts_that_are_all_too_short_are_refused(path):
    with pytest.raises(ConfigError, match=r"decontaminate_ngram: got 13, but no text of .*set\.tsv has so many words"):
        make_index([path], 13)
