"""Reads the texts of evaluation sets: TSV, JSON and JSON lines, or GLUE, SQuAD and BLiMP by name.

FILE                  all texts of a file, or of some of its FIELDS: columns of TSV, keys of JSON at any depth
FILE:FIELD,FIELD      (columns by their names in the header or, if all are numbers, counted from 1)
NAME=FILE[:FIELDS]    the same, with a name; otherwise the file's name is the set's
glue=FOLDER           dev and test sets of GLUE's tasks
squad=FOLDER          paragraphs and questions of dev sets
blimp=FOLDER          pairs of sentences, also in BLiMP.zip
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from foundation.config import ConfigError, shown
from foundation.files import require_file_or_folder

_GLUE = ("sentence", "sentence1", "sentence2", "question", "question1", "question2", "#1 String", "#2 String")
_LAYOUTS = {
    "glue": (re.compile(r"(?:.*/)?(?:dev|test)[^/]*\.tsv"), (*_GLUE, "4")),  # CoLA's dev set has no header
    "squad": (re.compile(r"(?:.*/)?dev[^/]*\.json"), ("context", "question")),
    "blimp": (re.compile(r"(?:data/)?[^/.][^/]*\.jsonl"), ("sentence_good", "sentence_bad")),
}
"""The files and fields of each named set."""


class Example(NamedTuple):
    """One text of an evaluation set."""

    place: str
    """The file, and the text's line number or, in JSON, its number among the texts."""
    text: str


class EvaluationSet(NamedTuple):
    """The texts of an evaluation set."""

    name: str
    sha256: str
    """SHA-256 of the set's files, their names and fields."""
    examples: list[Example]


def read_sets(given: Iterable[str]) -> list[EvaluationSet]:
    """Reads sets, given as above.

    Raises:
        ConfigError: a file or field is missing, a file is malformed or not a regular one, or two sets have one name.
    """
    sets = [_read_set(one) for one in given]
    names = [one.name for one in sets]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"decontaminate: two sets are called {repeated[0]}; name one of them: NAME=FILE")
    return sets


def _read_set(given: str) -> EvaluationSet:
    name, _, rest = given.rpartition("=") if not Path(given).exists() else ("", "", given)
    pattern, fields = _LAYOUTS.get(name, (None, ()))
    if pattern is None and not Path(rest).exists():
        rest, _, chosen = rest.rpartition(":")
        fields = tuple(chosen.split(","))
    digest = hashlib.sha256()
    examples: list[Example] = []
    try:
        for file, content in _files(Path(rest), pattern):
            digest.update(f"{file}\n{','.join(fields)}\n{len(content)}\n".encode(errors="surrogateescape"))
            digest.update(content)
            if b"\0" in content:
                raise ConfigError(f"decontaminate: {file} of {given} is not text; name a TSV or JSON file in UTF-8")
            before, found = len(examples), set[str]()
            examples += (Example(f"{file}#{number}", text) for number, text in _texts(file, content, fields, found))
            missing = [field for field in fields if field not in found] if pattern is None else []
            if missing or len(examples) == before:
                where = ", ".join(map(shown, missing or fields)) or "any field"
                raise ConfigError(
                    f"decontaminate: {file} of {given} has no text in {where}; name keys of JSON, names in the header "
                    "of a TSV, or numbers from 1: FILE:FIELD,FIELD"
                )
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:  # the last: an encrypted archive
        raise ConfigError(f"decontaminate: {given} cannot be read ({error}); name another file") from None
    if not examples:
        raise ConfigError(f"decontaminate: {given} holds no such files; name a folder with them")
    return EvaluationSet(name or Path(rest).name, digest.hexdigest(), examples)


def _files(root: Path, pattern: re.Pattern[str] | None) -> Iterator[tuple[str, bytes]]:
    """Yields the name and content of a file, or of the files in a folder or archive that match, in order."""
    require_file_or_folder(root, "decontaminate")
    if pattern is None or (root.is_file() and root.suffix != ".zip"):
        yield root.name, root.read_bytes()
        return
    if (archive := root / "BLiMP.zip").is_file():
        root = archive
    if root.is_file():
        with zipfile.ZipFile(root) as file:
            yield from ((name, file.read(name)) for name in sorted(file.namelist()) if pattern.fullmatch(name))
        return
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if not path.is_dir()}
    for name, path in sorted(paths.items()):
        if pattern.fullmatch(name):
            require_file_or_folder(path, "decontaminate")
            yield name, path.read_bytes()


def _texts(file: str, content: bytes, fields: tuple[str, ...], found: set[str]) -> Iterator[tuple[int, str]]:
    """Yields the texts of a file, each with its number; adds the fields that have text to `found`."""
    suffix = Path(file).suffix
    try:
        text = content.decode("utf-8-sig")
        if suffix == ".json":
            yield from enumerate(_strings(json.loads(text), fields, not fields, found), 1)
            return
        lines = text.splitlines() if suffix not in (".jsonl", ".ndjson") else text.split("\n")
        if suffix in (".jsonl", ".ndjson"):
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield from ((number, string) for string in _strings(json.loads(line), fields, not fields, found))
            return
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"decontaminate: {file} is not UTF-8 (at byte {error.start}); convert it (iconv -t UTF-8)"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"decontaminate: {file} is not valid JSON ({error}); repair or replace it") from None
    rows = [line.split("\t") for line in lines]  # without quoting, as in GLUE
    header = rows[0] if rows else []
    has_names = any(field in header and not field.isdecimal() for field in fields)
    names = header if has_names else [str(number) for number in range(1, max(map(len, rows), default=0) + 1)]
    for number, row in enumerate(rows[has_names:], 1 + has_names):
        for name, text in zip(names, row, strict=False):
            if text and (name in fields or not fields):
                found.add(name)
                yield number, text


def _strings(value: Any, fields: tuple[str, ...], wanted: bool, found: set[str]) -> Iterator[str]:
    """Yields the strings in a JSON value, at any depth: all if `wanted`, else only strings below keys in `fields`.

    Adds the keys above each string to `found`.
    """
    if isinstance(value, str) and wanted:
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part, fields, wanted, found)
    elif isinstance(value, dict):
        for key, part in value.items():
            for text in _strings(part, fields, wanted or key in fields, found):
                found.add(key)
                yield text
