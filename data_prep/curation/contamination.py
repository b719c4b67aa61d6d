"""Finds documents that share an n-gram of words with an evaluation set, as in GPT-3 (Brown et al. 2020, appendix C).

Words are runs of letters and digits in lower case; GPT-3 separates them at white space only, which would miss the
tokenized texts of some sets ("it 's"). Only the words of the evaluation sets are numbered, so memory depends on these
sets alone: about 20 bytes per n-gram. A key found is compared word by word.
"""

import io
import json
import re
import unicodedata
from collections.abc import Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.curation.evaluation_sets import read_sets
from data_prep.curation.ngrams import ngram_keys
from foundation.config import ConfigError
from foundation.files import write_if_other

INDEX_NAME = "evaluation_sets.npz"
_PREFIX = 22  # bits
_WORD = re.compile(r"\w+")


class Match(NamedTuple):
    """An n-gram that a document shares with an evaluation set; the first of each."""

    evaluation_set: str
    example: str
    ngram: str


class Index(NamedTuple):
    """The n-grams of evaluation sets, as rank 0 makes them for the workers."""

    sets: tuple[tuple[str, str], ...]
    """The name and sha256 of each set."""
    texts: int
    short: int
    """Texts of fewer than n words, which cannot be found."""
    arrays: dict[str, np.ndarray]

    def save(self, folder: Path) -> None:
        """Writes the index for the workers."""
        file = io.BytesIO()
        np.savez(file, **self.arrays)  # type: ignore[arg-type]
        write_if_other(folder / INDEX_NAME, file.getvalue())


class Contamination:
    """Finds n-grams of evaluation sets, whose index is saved in `folder`."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / INDEX_NAME) as file:
            arrays = dict(file)
        names = json.loads(arrays["names"].tobytes())
        self._n: int = names["n"]
        self._words: dict[str, int] = {word: number for number, word in enumerate(names["words"], 1)}
        self._examples: list[tuple[str, str]] = names["examples"]
        self._numbers, self._starts = arrays["numbers"], arrays["starts"]
        self._keys, self._places = arrays["keys"], arrays["places"]
        self._prefixes = np.zeros(1 << _PREFIX, bool)  # most keys of a document are recognized as others by these bits
        self._prefixes[self._keys >> np.uint64(64 - _PREFIX)] = True

    def find(self, text: str) -> Match | None:
        """Returns the first match in a text; None if there is none."""
        words = _WORD.findall(text.lower())
        numbers = np.fromiter(map(self._words.get, words, repeat(0)), np.uint32, len(words))
        keys = _keys(numbers, self._n)
        candidates = np.flatnonzero(self._prefixes[keys >> np.uint64(64 - _PREFIX)])
        nearest = np.minimum(np.searchsorted(self._keys, keys[candidates]), len(self._keys) - 1)
        equal = self._keys[nearest] == keys[candidates]
        for place, first in zip(candidates[equal].tolist(), self._places[nearest[equal]].tolist(), strict=True):
            if np.array_equal(self._numbers[first : first + self._n], numbers[place : place + self._n]):
                example = self._examples[int(np.searchsorted(self._starts, first, side="right")) - 1]
                return Match(*example, " ".join(words[place : place + self._n]))
        return None


def make_index(given: Sequence[str], n: int) -> Index | None:
    """Reads evaluation sets, given as to `read_sets`, and returns their n-grams; None if none is given.

    Raises:
        ConfigError: a set cannot be read, or no text has n words.
    """
    if not given:
        return None
    sets = read_sets(given)
    vocabulary: dict[str, int] = {}
    texts: list[np.ndarray] = []
    examples: list[tuple[str, str]] = []
    for one in sets:
        for example in one.examples:
            words = _WORD.findall(unicodedata.normalize("NFC", example.text).lower())
            if len(words) >= n:
                texts.append(np.array([vocabulary.setdefault(word, len(vocabulary) + 1) for word in words], np.uint32))
                examples.append((one.name, example.place))
    if not texts:
        raise ConfigError(
            f"decontaminate_ngram: got {n}, but no text of {' '.join(given)} has so many words; give a smaller n"
        )
    numbers, starts = np.concatenate(texts), np.cumsum([0, *map(len, texts)])
    keys = _keys(numbers, n)
    text_of = np.repeat(np.arange(len(texts)), np.diff(starts))
    within = np.flatnonzero(text_of[: len(keys)] == text_of[n - 1 :])
    keys, firsts = np.unique(keys[within], return_index=True)
    names = json.dumps({"n": n, "words": list(vocabulary), "examples": examples})
    arrays = {
        "names": np.frombuffer(names.encode(), np.uint8),
        "numbers": numbers,
        "starts": starts[:-1],
        "keys": keys,
        "places": within[firsts],
    }
    total = sum(len(one.examples) for one in sets)
    return Index(tuple((one.name, one.sha256) for one in sets), total, total - len(texts), arrays)


def _keys(numbers: np.ndarray, n: int) -> np.ndarray:
    return next(islice(ngram_keys(numbers), n - 1, None))
