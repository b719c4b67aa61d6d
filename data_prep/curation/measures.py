"""Measures of a text that the rules compare with thresholds; each is computed once, when a rule first asks for it.

Words are separated by white space and keep their punctuation, as in Dolma (Soldaini et al. 2024) and RedPajama. Lines
are stripped, and blank ones do not count.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice

import numpy as np

from electra_sampler.foundation.ordering import mixed

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd; the key of an n-gram is a polynomial in it, modulo 2^64
_BLANK_LINES = re.compile(r"\n\s*\n")
_LONGEST_NGRAM = 10  # words in the n-grams of the rules


@dataclass
class Measures:
    """Measures of one text, which is not empty."""

    text: str

    @cached_property
    def words(self) -> list[str]:
        """The words, in order."""
        return self.text.split()

    @cached_property
    def lines(self) -> list[str]:
        """The lines that are not blank, stripped."""
        return [line for line in map(str.strip, self.text.splitlines()) if line]

    @cached_property
    def paragraphs(self) -> list[str]:
        """The parts between blank lines."""
        return _BLANK_LINES.split(self.text.strip())

    def duplicates(self, parts: Sequence[str]) -> float:
        """Share of parts (lines or paragraphs) that are equal to an earlier one."""
        return (len(parts) - len(set(parts))) / len(parts)

    def duplicate_characters(self, parts: Sequence[str], of: int) -> float:
        """Number of characters in parts that are equal to an earlier part, divided by `of`."""
        return (sum(map(len, parts)) - sum(map(len, set(parts)))) / of

    def top_ngram(self, n: int) -> float:
        """Share of the text's characters, spaces included, that lie in occurrences of its most frequent n-gram."""
        if not len(keys := self._ngrams[n - 1]):
            return 0.0
        distinct, counts = np.unique(keys, return_counts=True)
        most = int(counts.max())
        first = int(np.isin(keys, distinct[counts == most]).argmax())
        return float(most * (self._ends[first + n] - self._ends[first] + n - 1) / len(self.text))

    def repeated_ngrams(self, n: int) -> float:
        """Share of the characters, without spaces, in n-grams that occurred earlier; no word counts twice."""
        keys = self._ngrams[n - 1]
        ordered = np.sort(keys)
        recurring = np.flatnonzero(np.isin(keys, ordered[1:][ordered[1:] == ordered[:-1]]))
        seen: set[int] = set()
        characters = free = 0
        for place, key in zip(recurring.tolist(), keys[recurring].tolist(), strict=True):
            if place < free:
                continue
            if key in seen:
                free = place + n
                characters += int(self._ends[free] - self._ends[place])
            seen.add(key)
        return characters / len(self.text)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Number of characters in the words before each word, and in all words."""
        return np.concatenate(([0], np.cumsum(np.fromiter(map(len, self.words), np.int64, len(self.words)))))

    @cached_property
    def _ngrams(self) -> list[np.ndarray]:
        """The keys of all 1-grams in order, of all 2-grams, and so on."""
        numbers: defaultdict[str, int] = defaultdict(count().__next__)  # of each distinct word
        words = np.fromiter(map(numbers.__getitem__, self.words), np.uint64, len(self.words))
        return [*islice(ngram_keys(words), _LONGEST_NGRAM)]


def ngram_keys(words: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the keys of all 1-grams of a sequence of numbered words, of all its 2-grams, and so on; all uint64.

    Equal n-grams have equal keys; two different n-grams do with probability 2^-64.
    """
    keys = words = mixed(words, 0)
    while True:
        yield keys
        words = words[1:]
        keys = keys[: len(words)] * _BASE + words
