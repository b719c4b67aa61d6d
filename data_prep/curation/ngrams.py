"""Keys of word n-grams: equal n-grams have equal keys, and two others have equal keys with a chance of 1 in 2^64."""

from collections.abc import Iterator

import numpy as np

from foundation.ordering import mixed

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd; the key is a polynomial in it, modulo 2^64


def ngram_keys(words: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the keys of all 1-grams of a sequence of numbered words, of all its 2-grams, and so on; all uint64."""
    keys = words = mixed(words, 0)
    while True:
        yield keys
        words = words[1:]
        keys = keys[: len(words)] * _BASE + words
