"""Claims about the measures of a text: n-grams against plain counting."""

from collections import Counter
from itertools import islice

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.curation.measures import Measures, ngram_keys

texts = st.lists(st.sampled_from(("a", "bc", "def", "g.")), min_size=1, max_size=60).map(" ".join)


def top_ngram(words: list[str], n: int) -> int:
    """Gopher's definition, by counting."""
    counts = Counter(tuple(words[place : place + n]) for place in range(len(words) - n + 1))
    return len(" ".join(counts.most_common(1)[0][0])) * counts.most_common(1)[0][1] if counts else 0


def repeated_ngrams(words: list[str], n: int) -> int:
    """Characters of n-grams seen before; after each, its words are skipped."""
    seen: set[tuple[str, ...]] = set()
    characters, place = 0, 0
    while place <= len(words) - n:
        ngram = tuple(words[place : place + n])
        characters += len("".join(ngram)) if ngram in seen else 0
        place += n if ngram in seen else 1
        seen.add(ngram)
    return characters


@given(texts)
@example(" ".join("a" * 20))  # n-grams recur within one that does
def test_ngrams_are_counted_as_by_hand_in_any_order_of_asking(text: str) -> None:
    measures, words = Measures(text), text.split()
    assert all(measures.top_ngram(n) == top_ngram(words, n) / len(text) for n in (4, 2, 3))
    assert all(measures.repeated_ngrams(n) == repeated_ngrams(words, n) / len(text) for n in (6, 5, 7, 8, 9, 10))


def test_words_keep_their_punctuation() -> None:
    assert Measures("It's 10 - now, \t#tag\n… 5%").words == ["It's", "10", "-", "now,", "#tag", "…", "5%"]


def test_lines_are_stripped_and_not_blank_and_paragraphs_are_between_blank_lines() -> None:
    measures = Measures("One \n two\x0bthree\n \t\n\nfour\n")
    assert measures.lines == ["One", "two", "three", "four"]
    assert measures.paragraphs == ["One \n two\x0bthree", "four"]


@given(st.lists(st.integers(0, 3), max_size=40))
def test_keys_are_equal_exactly_where_the_words_are(numbers: list[int]) -> None:
    for n, keys in enumerate(islice(ngram_keys(np.array(numbers, np.uint64)), 13), 1):
        ngrams = [tuple(numbers[place : place + n]) for place in range(len(numbers) - n + 1)]
        assert len(keys) == len(ngrams)
        assert len(set(ngrams)) == len(set(keys.tolist())) == len({*zip(ngrams, keys.tolist(), strict=True)})
