"""Applies the chosen steps of curation to one document after another."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

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


class Curator:
    """Judges documents.

    Args:
        filters: names of rules and of sets of rules.
    """

    def __init__(self, filters: Iterable[str] = ()) -> None:
        names = {name for given in filters for name in SETS.get(given, (given,))}
        self._rules = [rule for rule in RULES if rule.name in names]

    def judge(self, text: str) -> Verdict:
        """Judges a document, which has at least one character that is not white space."""
        removed: Counter[str] = Counter()
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
        return Verdict(text, removed)
