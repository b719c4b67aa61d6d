"""Named rules of quality and repetition for web text, each threshold with its source.

    C4        Raffel et al. 2020, section 2.2, and its code, tensorflow/datasets text/c4_utils.py
    Gopher    Rae et al. 2021, appendix A.1.1, repetition in its table A1
    FineWeb   Penedo et al. 2024, appendix E.4, table 2, and its code, datatrove's FineWebQualityFilter

The order is FineWeb's: Gopher's rules judge a document as it is; then C4 removes lines, and C4's and FineWeb's rules
judge the rest. A document is counted under the first rule that removes it. The threshold of a rule never changes,
because manifests record only the rule's name.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import regex

from data_prep.curation.measures import Measures

_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_ELLIPSES = ("...", "…")
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_C4_ENDS = (".", "?", "!", '"', "”")
_LETTER = re.compile(r"[^\W\d_]")
_TERMINAL = regex.compile(r"\p{Sentence_Terminal}")
"""Marks that end a sentence, in any script; no quotes."""
_INNER_SENTENCE = re.compile(r"[.?!][\"')\]’”]*[^\S\n]+(?=[^\s\da-z])")
"""A sentence end inside a line: a mark, then white space, then no lower-case letter or digit."""
_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


class Rule(NamedTuple):
    """Removes a document unless `least` <= measure <= `most`."""

    name: str
    source: str
    measure: Callable[[Measures], float]
    least: float = float("-inf")
    most: float = float("inf")


class LineRule(NamedTuple):
    """Edits each line of a document; if `edit` returns None, the line is removed."""

    name: str
    source: str
    edit: Callable[[str], str | None]


def _share(parts: Sequence[str], holds: Callable[[str], bool]) -> float:
    return sum(map(holds, parts)) / len(parts)


def _per_word(text: Measures, *symbols: str) -> float:
    return sum(map(text.text.count, symbols)) / len(text.words)


def _lines_that(keep: Callable[[str], bool]) -> Callable[[str], str | None]:
    return lambda line: line if keep(line) else None


LINE_RULES = (
    LineRule(
        "c4_long_word", "C4's code: 1000", _lines_that(lambda line: max(map(len, line.split()), default=0) <= 1000)
    ),
    LineRule("c4_citation", "C4: markers such as [1], [edit]", lambda line: _CITATION.sub("", line)),
    LineRule(
        "c4_terminal_punctuation",
        "C4: period, exclamation or question mark, end quotation mark; C4's code: no ellipsis",
        _lines_that(lambda line: line.rstrip().endswith(_C4_ENDS) and not line.rstrip().endswith("...")),
    ),
    LineRule("c4_line_words", "C4: 5", _lines_that(lambda line: len(line.split()) >= 5)),
    LineRule("c4_javascript", "C4: the word Javascript", _lines_that(lambda line: "javascript" not in line.lower())),
    LineRule(
        "c4_policy",
        "C4: six phrases about cookies, privacy and terms of use",
        _lines_that(lambda line: not any(map(line.lower().__contains__, _POLICIES))),
    ),
)

GOPHER = (
    Rule("gopher_word_count", "Gopher: 50 to 100,000", lambda text: len(text.words), 50, 100_000),
    Rule("gopher_word_length", "Gopher: 3 to 10", lambda text: sum(map(len, text.words)) / len(text.words), 3, 10),
    Rule("gopher_hashes", "Gopher: 0.1 per word", lambda text: _per_word(text, "#"), most=0.1),
    Rule("gopher_ellipses", "Gopher: 0.1 per word", lambda text: _per_word(text, *_ELLIPSES), most=0.1),
    Rule(
        "gopher_bullets",
        "Gopher: 90% of lines",
        lambda text: _share(text.lines, lambda line: line.startswith(("•", "-"))),
        most=0.9,
    ),
    Rule(
        "gopher_ellipsis_lines",
        "Gopher: 30% of lines",
        lambda text: _share(text.lines, lambda line: line.endswith(_ELLIPSES)),
        most=0.3,
    ),
    Rule(
        "gopher_letters",
        "Gopher: 80% of words with a letter",
        lambda text: _share(text.words, lambda word: word.isalpha() or _LETTER.search(word) is not None),
        least=0.8,
    ),
    Rule(
        "gopher_stop_words",
        "Gopher: 2 of 8 English words",
        lambda text: len(_STOP_WORDS.intersection(text.words)),
        least=2,
    ),
    Rule("gopher_duplicate_lines", "Gopher, A1", lambda text: text.duplicates(text.lines), most=0.30),
    Rule("gopher_duplicate_paragraphs", "Gopher, A1", lambda text: text.duplicates(text.paragraphs), most=0.30),
    Rule(
        "gopher_duplicate_line_characters",
        "Gopher, A1",
        lambda text: text.duplicate_characters(text.lines, len(text.text)),
        most=0.20,
    ),
    Rule(
        "gopher_duplicate_paragraph_characters",
        "Gopher, A1",
        lambda text: text.duplicate_characters(text.paragraphs, len(text.text)),
        most=0.20,
    ),
    *(
        Rule(f"gopher_top_{n}_gram", "Gopher, A1", partial(Measures.top_ngram, n=n), most=most)
        for n, most in ((2, 0.20), (3, 0.18), (4, 0.16))
    ),
    *(
        Rule(f"gopher_duplicate_{n}_grams", "Gopher, A1", partial(Measures.repeated_ngrams, n=n), most=most)
        for n, most in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    ),
)

C4 = (
    Rule("c4_lorem_ipsum", "C4", lambda text: text.text.lower().count("lorem ipsum"), most=0),
    Rule("c4_curly_bracket", "C4", lambda text: text.text.count("{"), most=0),
    Rule("c4_sentences", "C4: 3", lambda text: len(text.lines) + len(_INNER_SENTENCE.findall(text.text)), least=3),
)

FINEWEB = (
    Rule(
        "fineweb_punctuated_lines",
        "FineWeb, table 2",
        lambda text: _share(text.lines, lambda line: _TERMINAL.match(line[-1]) is not None),
        least=0.12,
    ),
    Rule(
        "fineweb_short_lines",
        "FineWeb, table 2: of at most 30 characters",
        lambda text: _share(text.lines, lambda line: len(line) <= 30),
        most=0.67,
    ),
    Rule(
        "fineweb_duplicate_line_characters",
        "FineWeb, table 2 and its code; 0.1 in section 3.6",
        lambda text: text.duplicate_characters(text.lines, sum(map(len, text.lines))),
        most=0.01,
    ),
    Rule("fineweb_line_breaks", "FineWeb's code: 0.3 per word", lambda text: _per_word(text, "\n"), most=0.3),
)

RULES: tuple[Rule | LineRule, ...] = (*GOPHER, *LINE_RULES, *C4, *FINEWEB)
"""All rules, in the order in which they apply."""
SETS = {
    "gopher": tuple(rule.name for rule in GOPHER),
    "c4": tuple(rule.name for rule in (*LINE_RULES, *C4)),
    "fineweb": tuple(rule.name for rule in FINEWEB),
}
FILTERS = (*SETS, *(rule.name for rule in RULES))
"""The names that a user may give: sets and single rules."""
