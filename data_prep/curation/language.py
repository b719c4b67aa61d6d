"""Identifies the language of a document by `py3langid`, whose model is in its package: nothing is downloaded."""

from collections import Counter
from functools import lru_cache

import numpy as np

from foundation.config import ConfigError, one_of

_JUDGED = 5_000  # characters; on 400 articles of Wikipedia, the rest changed no verdict and took five times as long


class Languages:
    """The languages to keep.

    Args:
        threshold: least confidence, from 0 to 1. At 0, the likeliest language decides, however unlikely.

    Raises:
        ConfigError: a language is unknown, or py3langid is not installed.
    """

    def __init__(self, keep: tuple[str, ...], threshold: float) -> None:
        self._keep, self._threshold = keep, threshold
        if unknown := set(keep).difference(known := _identifier().labels):
            raise ConfigError(f"keep_language: got {min(unknown)!r}, {one_of(min(unknown), sorted(known))}")

    def keeps(self, text: str) -> bool:
        """True if the beginning of the text is in one of the languages; digits are in none."""
        language, confidence = _identifier().classify(text[:_JUDGED])
        return language in self._keep and confidence >= self._threshold


@lru_cache(maxsize=1)
def _identifier():  # type: ignore[no-untyped-def]
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise ConfigError("keep_language: needs py3langid; run pip install 'electra-sampler[language]'") from None

    class Identifier(LanguageIdentifier):
        """Sums in one order and in double precision; BLAS's order depends on the number of threads."""

        def _sparse_score(self, visits: Counter[int], table: np.ndarray) -> np.ndarray:
            counts = np.fromiter(visits.values(), np.float64, len(visits))
            return (np.log1p(counts)[:, None] * table[list(visits)]).sum(axis=0) + self.nb_pc

    return Identifier.from_model_file(MODEL_FILE, norm_probs=True)
