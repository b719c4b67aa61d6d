"""The controlled language: its exact distribution against all documents of a small grammar."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from bench import language
from bench.language import START, Language, State, minimal_pairs, words_of, zipf


def test_the_exact_distribution_is_that_of_all_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"noun": 2, "preposition": 1, "determiner": 1, "adjective": 2, "verb": 2, "adverb": 1, ".": 1}
    for name, value in {
        **{"LETTERS": "bd", "CLASSES": 2, "WORDS": small, "SENTENCES": 1},
        **{"BEFORE_VERB": (0.3, 0.7), "AFTER_VERB": (1.0,), "ADJECTIVE": (0.3, 0.0)},
    }.items():
        monkeypatch.setattr(language, name, value)
    grammar = Language()

    def documents(state: State, share: float, shown: tuple[int, ...]) -> Iterator[tuple[float, tuple[int, ...]]]:
        following = [*state.successors()]
        if not following:
            yield share, shown
        for part, after in following:
            for word, frequency in zip(words_of(after), zipf(small[after.kind]), strict=True):
                yield from documents(after, share * part * frequency, (*shown, grammar.words.index(word)))

    every = [*documents(START, 1.0, ())]
    assert sum(share for share, _ in every) == pytest.approx(1, abs=1e-12)
    shares = np.array([share for share, shown in every if len(shown) == 7])
    ids = np.array([shown for _, shown in every if len(shown) == 7])
    source = np.random.default_rng(0)
    chosen = ids[source.integers(len(ids), size=12)]
    masked = source.random(chosen.shape) < 0.5
    for document, hidden, p in zip(chosen, masked, grammar.posterior(chosen, masked), strict=True):
        fits = (ids == document)[:, ~hidden].all(1)
        for place in np.flatnonzero(hidden):
            wanted = np.bincount(ids[fits, place], shares[fits], len(grammar.words)) / shares[fits].sum()
            np.testing.assert_allclose(p[place], wanted, atol=1e-12)


def test_the_bad_document_of_a_pair_has_another_verb_that_does_not_agree() -> None:
    for pair in minimal_pairs(Language(), 20, random.Random(0)):
        good, bad = pair.good.split(), pair.bad.split()
        ((place, one, other),) = [(n, a, b) for n, (a, b) in enumerate(zip(good, bad, strict=True)) if a != b]
        sentence = " ".join(good[:place]).rpartition(". ")[2].split()
        assert sentence[0][3] == one[3] != other[3] and one[4:] == other[4:]
        assert pair.term == f"verb, {sum(word.startswith('pre') for word in sentence)} phrases"
