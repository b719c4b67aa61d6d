"""Finds documents that share an n-gram of words with an evaluation set, as in GPT-3 (Brown et al. 2020, appendix C).

The sets are TSV, JSON and JSON lines, or GLUE, SQuAD and BLiMP by name:

    FILE                  all texts of a file, or of some of its FIELDS: columns of TSV, keys of JSON at any depth
    FILE:FIELD,FIELD      (columns by their names in the header or, if all are numbers, counted from 1)
    NAME=FILE[:FIELDS]    the same, with a name; otherwise the file's name is the set's
    glue=FOLDER           dev and test sets of GLUE's tasks
    squad=FOLDER          paragraphs and questions of dev sets
    blimp=FOLDER          pairs of sentences, also in BLiMP.zip

Words (`words.py`) are compared in lower case; GPT-3 separates them at white space only, which would miss the tokenized
texts of some sets ("it 's"). Only the words of the evaluation sets are numbered, so memory depends on these sets alone:
about 20 bytes per n-gram. If a key matches, the words are compared.
"""

import hashlib
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep.curation.measures import ngram_keys
from data_prep.curation.words import words
from electra_sampler.foundation.config import ConfigError, explained, refuse, shown
from electra_sampler.foundation.files import UNREADABLE, files_in, write_if_other

INDEX_NAME = "evaluation_sets.npz"
_PREFIX = 22  # bits
_JSON = (".json", ".jsonl", ".ndjson")
_LAYOUTS = {
    "glue": (
        "",
        re.compile(r"(?:.*/)?(?:dev|test)[^/]*\.tsv"),
        # the last: CoLA's dev set has no header
        ("sentence", "sentence1", "sentence2", "question", "question1", "question2", "#1 String", "#2 String", "4"),
    ),
    "squad": ("", re.compile(r"(?:.*/)?dev[^/]*\.json"), ("context", "question")),
    "blimp": ("BLiMP.zip", re.compile(r"(?:data/)?[^/.][^/]*\.jsonl"), ("sentence_good", "sentence_bad")),
}
"""Of each named set: the archive that its folder may hold instead of files, the files, and their fields."""


class Match(NamedTuple):
    """The first n-gram that a document shares with an evaluation set."""

    evaluation_set: str
    example: str
    ngram: str


class Index(NamedTuple):
    """The n-grams of evaluation sets; the main process makes them once, and the workers load them."""

    sets: tuple[tuple[str, str], ...]
    """The name and sha256 of each set."""
    texts: int
    short: int
    """Number of texts of fewer than n words, which cannot be detected in documents."""
    arrays: dict[str, np.ndarray]

    def save(self, folder: Path) -> None:
        """Writes the index for the workers."""
        file = io.BytesIO()
        np.savez(file, **self.arrays)  # type: ignore[arg-type]
        write_if_other(folder / INDEX_NAME, file.getvalue())


class Contamination:
    """Finds n-grams of evaluation sets in documents, by the index saved in `folder`."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / INDEX_NAME) as arrays:
            names = json.loads(arrays["names"].tobytes())
            self._numbers, self._starts = arrays["numbers"], arrays["starts"]
            self._keys, self._places = arrays["keys"], arrays["places"]
        self._n: int = names["n"]
        self._words: dict[str, int] = {word: number for number, word in enumerate(names["words"], 1)}
        self._examples: list[tuple[str, str]] = names["examples"]
        self._prefixes = np.zeros(1 << _PREFIX, bool)  # most keys of a document are recognized as others by these bits
        self._prefixes[self._keys >> np.uint64(64 - _PREFIX)] = True

    def find(self, text: str) -> Match | None:
        """Returns the first n-gram of a document's text that is in an evaluation set; None if there is none."""
        found = words(text.lower())
        numbers = np.fromiter(map(self._words.get, found, repeat(0)), np.uint32, len(found))
        keys = _keys(numbers, self._n)
        candidates = np.flatnonzero(self._prefixes[keys >> np.uint64(64 - _PREFIX)])
        nearest = np.minimum(np.searchsorted(self._keys, keys[candidates]), len(self._keys) - 1)
        equal = self._keys[nearest] == keys[candidates]
        for place, first in zip(candidates[equal].tolist(), self._places[nearest[equal]].tolist(), strict=True):
            if np.array_equal(self._numbers[first : first + self._n], numbers[place : place + self._n]):
                example = self._examples[int(np.searchsorted(self._starts, first, side="right")) - 1]
                return Match(*example, " ".join(found[place : place + self._n]))
        return None


def make_index(given: Sequence[str], n: int) -> Index:
    """Reads the `given` evaluation sets, as `read_sets` does, and returns their n-grams.

    Raises:
        ConfigError: a set cannot be read, or no text has n words.
    """
    sets = read_sets(given)
    vocabulary: dict[str, int] = {}
    texts: list[np.ndarray] = []
    examples: list[tuple[str, str]] = []
    for one in sets:
        for place, text in one.examples:
            found = words(unicodedata.normalize("NFC", text).lower())
            if len(found) >= n:
                texts.append(np.array([vocabulary.setdefault(word, len(vocabulary) + 1) for word in found], np.uint32))
                examples.append((one.name, place))
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


class EvaluationSet(NamedTuple):
    """The texts of an evaluation set."""

    name: str
    sha256: str
    """SHA-256 of the set's files, their names and fields."""
    examples: list[tuple[str, str]]
    """Pairs of place and text. The place is `FILE#NUMBER`: the line or, in a .json file, the number of the text."""


def read_sets(given: Iterable[str]) -> list[EvaluationSet]:
    """Reads evaluation sets, given in the notation at the top of this module.

    Raises:
        ConfigError: a file or field is missing, a file is malformed or not regular, or two sets have the same name.
    """
    sets = [_read_set(one) for one in given]
    refuse(
        f"decontaminate: two sets are called {name}; rename one of them: NAME=FILE"
        for name, times in Counter(one.name for one in sets).items()
        if times > 1
    )
    return sets


def _read_set(given: str) -> EvaluationSet:
    name, _, rest = given.rpartition("=") if not Path(given).exists() else ("", "", given)
    archive, pattern, fields = _LAYOUTS.get(name, ("", None, ()))
    if pattern is None and not Path(rest).exists():
        rest, _, chosen = rest.rpartition(":")
        fields = tuple(chosen.split(","))
    digest = hashlib.sha256()
    examples: list[tuple[str, str]] = []
    with explained(f"decontaminate: {given} cannot be read", "name another file", UNREADABLE):
        for file, content in files_in(Path(rest), pattern, "decontaminate", archive):
            digest.update(f"{file}\n{','.join(fields)}\n{len(content)}\n".encode(errors="surrogateescape"))
            digest.update(content)
            texts = list(_texts(file, content, fields))
            examples += ((f"{file}#{number}", text) for number, _, text in texts)
            missing = set(fields).difference(field for _, field, _ in texts) if pattern is None else ()
            if missing or not texts:
                where = ", ".join(shown(field) for field in fields if field in missing or not texts) or "any field"
                raise ConfigError(
                    f"decontaminate: {file} of {given} has no text in {where}; name JSON keys, columns in the header "
                    "of a TSV, or column numbers from 1: FILE:FIELD,FIELD"
                )
    if not examples:
        raise ConfigError(f"decontaminate: {given} holds no files of this set; name the folder that contains them")
    return EvaluationSet(name or Path(rest).name, digest.hexdigest(), examples)


def _texts(file: str, content: bytes, fields: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
    """Yields (number, field, text) for each text of a file."""
    suffix = Path(file).suffix
    what = f"decontaminate: {file} is not valid {'JSON' if suffix in _JSON else 'TSV'} in UTF-8"
    with explained(what, "repair it, or convert it (iconv -t UTF-8)", (ValueError, RecursionError)):
        text = content.decode("utf-8-sig")
        if suffix == ".json":
            yield from ((number, *found) for number, found in enumerate(_strings(json.loads(text), fields), 1))
        elif suffix in _JSON:
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    yield from ((number, *found) for found in _strings(json.loads(line), fields))
        else:
            yield from _cells(text, fields)


def _cells(text: str, fields: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
    # without quoting, as in GLUE; a cell may hold a line separator of Unicode
    rows = [line.removesuffix("\r").split("\t") for line in text.split("\n")]
    has_names = any(field in rows[0] and not field.isdecimal() for field in fields)
    names = rows[0] if has_names else [str(number) for number in range(1, max(map(len, rows)) + 1)]
    for number, row in enumerate(rows[has_names:], 1 + has_names):
        for name, cell in zip(names, row, strict=False):
            if cell and (name in fields or not fields):
                yield number, name, cell


def _strings(value: Any, fields: tuple[str, ...], field: str = "") -> Iterator[tuple[str, str]]:
    """Yields (field, string) for each string at any depth of a JSON value; the field is the innermost key around it.

    Only keys in `fields` count. Strings outside of them are skipped, unless `fields` is empty.
    """
    if isinstance(value, str) and (field or not fields):
        yield field, value
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part, fields, field)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _strings(part, fields, key if key in fields else field)
