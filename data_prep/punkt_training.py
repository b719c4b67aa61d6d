"""Trains Punkt on text (Kiss and Strunk, 2006) as NLTK's PunktTrainer does with its defaults, and several times faster.

NLTK makes an object of each token; here equal words are split once, and equal tokens share their properties.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import regex

from data_prep.punkt import ELLIPSIS, INITIAL, LOWER_FLAGS, NUMBER, NUMERIC, TOKEN, UPPER_FLAGS, PunktModel

# NLTK's thresholds: least score of an abbreviation, occurrences from which a word is not rare, least log-likelihood
_ABBREVIATION, _FREQUENT, _STARTER, _COLLOCATION = 0.3, 5, 30, 7.88

_BEGINNING, _INSIDE, _UNKNOWN = range(3)  # a token's place in its sentence
_LETTER = regex.compile(r"[^\W\d]")
_LETTERS = regex.compile(r"[^\W\d]+$")
_WHOLE = re.compile(r"[\x1c-\x1f]|\.\s\.")
"""Marks a line whose tokens are not those of its words: dots with spaces between them are one token, and `str.split`
has more separators than the tokens' pattern."""


class _Token(NamedTuple):
    """A token's properties that depend only on its text."""

    kind: str
    """Lower case, a number as ##number##."""
    base: str
    """The kind without its final full stop."""
    flags: tuple[int, ...]
    """NLTK's flag of its case in each place; 0 without case."""
    dotted: bool
    """It ends with a full stop; so does an ellipsis."""
    ends: bool
    """A sentence ends after it, unless it is an abbreviation."""
    plain: bool
    """It is neither an end, nor an abbreviation, nor an ellipsis."""
    stems: tuple[str, ...]
    """The forms in which it may be known as an abbreviation."""
    numeral: bool
    """It is a number or an initial: a full stop after it may not end the sentence."""
    spelled: bool
    """It has only letters."""
    word: bool
    """It is more than punctuation."""
    lower: bool
    internal: bool
    """It begins with a punctuation mark from inside a sentence."""


def _analyse(text: str) -> _Token:
    if text.isascii() and text.isalpha():  # most words: none of the patterns below matches, except that of letters
        kind, lower = text.lower(), text[0].islower()
        flags = LOWER_FLAGS if lower else UPPER_FLAGS
        return _Token(kind, kind, flags, False, False, True, (), False, True, True, lower, False)
    kind = NUMERIC.sub(NUMBER, text.lower())
    dotted = text.endswith(".")
    upper, lower = text[0].isupper(), text[0].islower()
    is_mark, is_ellipsis = text in (".", "?", "!"), ELLIPSIS.match(text) is not None
    stem = text[:-1].lower() if dotted and not is_mark and not text.endswith("..") else ""
    return _Token(
        kind=kind,
        base=kind[:-1] if len(kind) > 1 and kind.endswith(".") else kind,
        flags=LOWER_FLAGS if lower else UPPER_FLAGS if upper else (0, 0, 0),
        dotted=dotted,
        ends=is_mark or bool(stem),
        plain=not (is_mark or stem or is_ellipsis),
        stems=(stem, stem.split("-")[-1]) if stem else (),
        numeral=kind.startswith(NUMBER) or INITIAL.match(text) is not None,
        spelled=_LETTERS.match(text) is not None,
        word=_LETTER.search(kind) is not None,
        lower=lower,
        internal=text[0] in ",:;",
    )


class _Words(dict[str, list[_Token]]):
    """The tokens of each word seen."""

    def __init__(self) -> None:
        self._token = cache(_analyse)

    def __missing__(self, word: str) -> list[_Token]:
        self[word] = found = self.tokens(word)
        return found

    def tokens(self, text: str) -> list[_Token]:
        if text.isascii() and text.isalpha():
            return [self._token(text)]
        return [self._token(found) for found in TOKEN.findall(text)]


class _Pair(NamedTuple):
    """A token with a full stop, and the token after it."""

    first: _Token
    first_ends: bool
    second: _Token
    second_ends: bool

    @property
    def second_kind(self) -> str:
        return self.second.base if self.second_ends else self.second.kind


class PunktTrainer:
    """Collects counts, document by document."""

    def __init__(self) -> None:
        self._words = _Words()
        self._counts: Counter[str] = Counter()
        self._total = self._dotted = self._ends = 0
        self._starters: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._abbreviations: set[str] = set()
        self._ortho_context: defaultdict[str, int] = defaultdict(int)

    def add(self, document: str) -> None:
        """Counts a document's tokens, and reconsiders the abbreviations among them."""
        lines = self._lines(document)
        tokens = list(chain.from_iterable(tokens for _, tokens in lines))
        kinds = Counter(map(attrgetter("kind"), tokens))
        self._counts.update(kinds)
        self._total += len(tokens)
        self._dotted += sum(map(attrgetter("dotted"), tokens))
        for kind in kinds:
            if (kind in self._abbreviations) != kind.endswith("."):
                self._reconsider(kind, adding=kind.endswith("."))
        for pair in self._annotate(lines):
            self._count(pair)

    def model(self) -> PunktModel:
        """Returns the model of all documents so far."""
        starters = {kind for kind, number in self._starters.items() if self._starts_sentences(kind, number)}
        collocations = {
            (first, second)
            for (first, second), number in self._pairs.items()
            if second not in starters and self._belong_together(first, second, number)
        }
        return PunktModel(set(self._abbreviations), collocations, starters, dict(self._ortho_context))

    def _lines(self, document: str) -> list[tuple[bool, list[_Token]]]:
        """Returns the tokens of each line that is not empty, and whether a paragraph begins with it."""
        lines, begins = [], False
        for line in document.split("\n"):
            if not line.strip():
                begins = True
                continue
            words = chain.from_iterable(map(self._words.__getitem__, line.split()))
            lines.append((begins, self._words.tokens(line) if _WHOLE.search(line) else list(words)))
            begins = False
        return lines

    def _reconsider(self, kind: str, adding: bool) -> None:
        """Adds or removes an abbreviation, by the latest counts."""
        if kind == NUMBER or not _LETTER.search(kind):
            return
        stem = kind[:-1] if adding else kind
        with_stop, without = self._counts[f"{stem}."], self._counts[stem]
        share = self._dotted / self._total
        periods = stem.count(".") + 1
        letters = len(stem) - periods + 1
        likelihood = with_stop * (math.log(0.99) - math.log(share + 1e-8)) + without * (
            math.log(1 - 0.99) - math.log(1 - share + 1e-8)
        )
        score = 2 * likelihood * math.exp(-letters) * periods * letters**-without
        if adding and score >= _ABBREVIATION:
            self._abbreviations.add(stem)
        elif not adding and score < _ABBREVIATION:
            self._abbreviations.remove(stem)

    def _annotate(self, lines: Iterable[tuple[bool, list[_Token]]]) -> list[_Pair]:
        """Notes in which case and place each word occurs; returns the pairs whose first token has a full stop."""
        pairs: list[_Pair] = []
        contexts, place = self._ortho_context, _INSIDE
        before: tuple[_Token, bool] | None = None
        for begins, tokens in lines:
            if begins and place != _UNKNOWN:
                place = _BEGINNING
            if place == _INSIDE:
                place = _UNKNOWN
            for token in tokens:
                ends = token.ends and self._abbreviations.isdisjoint(token.stems)
                if flag := token.flags[place]:
                    contexts[token.base if ends else token.kind] |= flag
                if before is not None:
                    pairs.append(_Pair(*before, token, ends))
                before = (token, ends) if token.dotted else None
                if token.plain:
                    place = _INSIDE
                elif ends:
                    self._ends += 1
                    place = _UNKNOWN if token.numeral else _BEGINNING
                else:
                    place = _UNKNOWN
        return pairs

    def _count(self, pair: _Pair) -> None:
        """Counts a pair as evidence for a rare abbreviation, a sentence starter or a collocation."""
        first, second = pair.first, pair.second
        if pair.first_ends and self._is_rare_abbreviation(pair):
            self._abbreviations.add(first.base)
        if pair.first_ends and not first.numeral and second.spelled:
            self._starters[second.kind] += 1
        if pair.first_ends and first.numeral and first.word and second.word:
            self._pairs[first.base, pair.second_kind] += 1

    def _is_rare_abbreviation(self, pair: _Pair) -> bool:
        kind = pair.first.base
        if kind in self._abbreviations or self._counts[kind] + self._counts[kind[:-1]] >= _FREQUENT:
            return False
        seen = self._ortho_context[pair.second_kind] if pair.second.lower else 0
        return pair.second.internal or bool(seen & UPPER_FLAGS[_BEGINNING] and not seen & UPPER_FLAGS[_INSIDE])

    def _starts_sentences(self, kind: str, number: int) -> bool:
        count = self._counts[kind] + self._counts[f"{kind}."]
        return (
            _log_likelihood(self._ends, count, number, self._total) >= _STARTER
            and self._total / self._ends > count / number
        )

    def _belong_together(self, first: str, second: str, number: int) -> bool:
        of_first, of_second = (self._counts[kind] + self._counts[f"{kind}."] for kind in (first, second))
        return (
            1 < number <= min(of_first, of_second)
            and _log_likelihood(of_first, of_second, number, self._total) >= _COLLOCATION
            and self._total / of_first > of_second / number
        )


def _log_likelihood(of_first: int, of_second: int, together: int, total: int) -> float:
    """Dunning's log-likelihood ratio of two words' co-occurrence (Kiss and Strunk, section 4.2), by their counts."""
    p = of_second / total
    p1 = together / of_first
    p2 = (of_second - together) / (total - of_first) if total > of_first else 1.0
    others, alone = of_second - together, total - of_first - of_second + together

    def log_probability(hits: int, misses: int, probability: float) -> float:
        return hits * math.log(probability) + misses * math.log(1 - probability) if 0 < probability < 1 else 0.0

    independent = log_probability(together, of_first - together, p) + log_probability(others, alone, p)
    dependent = (log_probability(together, of_first - together, p1) if of_first != together else 0.0) + (
        log_probability(others, alone, p2) if of_second != together else 0.0
    )
    return -2 * (independent - dependent)
