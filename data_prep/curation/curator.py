"""Applies the chosen steps of curation to one document after another."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from data_prep.curation.contamination import Contamination, Match
from data_prep.curation.measures import Measures
from data_prep.curation.rules import RULES, SETS, LineRule


class Verdict(NamedTuple):
    """The result for one document."""

    text: str
    """The lines that are left."""
    removed: Counter[str]
    """Characters removed, by line rule."""
    reason: str | None = None
    """The step or rule that drops the document; None if it is kept."""
    match: Match | None = None
    """The n-gram of an evaluation set, if that is the reason."""


class Curator:
    """Judges documents, by default without any step.

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
        """Judges a document, which has at least one character that is not white space."""
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
                continue
            if not text or text.isspace():
                break
            measures = measures or Measures(text)
            if not rule.least <= rule.measure(measures) <= rule.most:
                return Verdict(text, removed, rule.name)
        if self._contamination and (match := self._contamination.find(text)):
            return Verdict(text, removed, "contaminated", match)
        return Verdict(text, removed)
