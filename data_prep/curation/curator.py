"""Applies the chosen steps of curation to one document after another: language, rules, decontamination.

The language is identified by `py3langid`, whose model is in its package: nothing is downloaded.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data_prep.curation.contamination import Contamination, Match
from data_prep.curation.measures import Measures
from data_prep.curation.rules import RULES, SETS, LineRule
from electra_sampler.foundation.config import ConfigError, one_of, refuse

_JUDGED = 5_000  # characters; on 280 articles of Wikipedia, the rest changed no verdict and took three times as long


class Verdict(NamedTuple):
    """The result for one document."""

    text: str
    """The text after the line rules."""
    removed: Counter[str]
    """Number of characters that each line rule removed."""
    reason: str | None = None
    """The step or rule that drops the document; None if it is kept."""
    match: Match | None = None
    """The n-gram shared with an evaluation set, if the document is dropped for it."""


class Curator:
    """Applies the chosen steps to documents; by default, none.

    Args:
        filters: names of rules and of sets of rules.
    """

    def __init__(
        self,
        filters: Iterable[str] = (),
        is_kept_language: Callable[[str], bool] | None = None,
        contamination: Contamination | None = None,
    ) -> None:
        self._is_kept_language, self._contamination = is_kept_language, contamination
        names = {name for given in filters for name in SETS.get(given, (given,))}
        self._rules = [rule for rule in RULES if rule.name in names]

    def judge(self, text: str) -> Verdict:
        """Returns the verdict on a document, which must not be blank."""
        removed: Counter[str] = Counter()
        if self._is_kept_language and not self._is_kept_language(text):
            return Verdict(text, removed, "language")
        measures: Measures | None = None
        for rule in self._rules:
            if isinstance(rule, LineRule):
                edited = "\n".join(line for line in map(rule.edit, text.split("\n")) if line is not None)
                if len(edited) != len(text):
                    removed[rule.name] += len(text) - len(edited)
                    text, measures = edited, None
            elif not text or text.isspace():
                break
            else:
                measures = measures or Measures(text)
                if not rule.least <= rule.measure(measures) <= rule.most:
                    return Verdict(text, removed, rule.name)
        if self._contamination and (match := self._contamination.find(text)):
            return Verdict(text, removed, "contaminated", match)
        return Verdict(text, removed)


def language_test(keep: tuple[str, ...], threshold: float) -> Callable[[str], bool]:
    """Returns a function that tells whether a text, judging by its beginning, is in one of the languages to keep.

    A text without evidence, such as only digits, is in no language.

    Args:
        keep: codes of py3langid, such as en.
        threshold: least confidence, from 0 to 1. At 0, the likeliest language decides, however unlikely.

    Raises:
        ConfigError: a language is unknown, or py3langid is not installed.
    """
    identifier = _identifier()
    refuse(
        f"keep_language: got {code!r}, {one_of(code, sorted(identifier.labels))}"
        for code in sorted({*keep}.difference(identifier.labels))
    )

    def is_kept(text: str) -> bool:
        language, confidence = identifier.classify(text[:_JUDGED])
        return language in keep and confidence >= threshold

    return is_kept


@lru_cache(maxsize=1)
def _identifier():  # type: ignore[no-untyped-def]
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise ConfigError("keep_language: needs py3langid; run pip install 'electra-sampler[language]'") from None

    class Identifier(LanguageIdentifier):
        """py3langid's model, with sums in a fixed order and in fp64: the result does not depend on the threads."""

        def _sparse_score(self, visits: Counter[int], table: np.ndarray) -> np.ndarray:
            counts = np.fromiter(visits.values(), np.float64, len(visits))
            return (np.log1p(counts)[:, None] * table[list(visits)]).sum(axis=0) + self.nb_pc

    return Identifier.from_model_file(MODEL_FILE, norm_probs=True)
