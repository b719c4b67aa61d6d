"""SQuAD 2.0 and 1.1 in their official JSON layout: paragraphs, the questions asked of each, and their answers."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from finetune.tokens.examples import sha256_of
from foundation.config import ConfigError

PROBLEMS_SHOWN = 5
"""Malformed entries one error names in full; it counts the rest."""


@dataclass(frozen=True, kw_only=True)
class SquadVersion:
    """One of the two releases: its files, and what its results are known by."""

    name: str
    train_file: str
    dev_file: str
    has_unanswerable: bool
    official_examples: int
    """Questions of the official training file, to tell it from another in the same layout."""
    metrics: tuple[str, ...] = ("f1", "exact")
    """Names in `metrics.py`; the first chooses the best epoch."""
    dev_splits: tuple[str, ...] = ("dev",)


VERSIONS = {
    "2.0": SquadVersion(
        name="SQuAD 2.0",
        train_file="train-v2.0.json",
        dev_file="dev-v2.0.json",
        has_unanswerable=True,
        official_examples=130_319,
    ),
    "1.1": SquadVersion(
        name="SQuAD 1.1",
        train_file="train-v1.1.json",
        dev_file="dev-v1.1.json",
        has_unanswerable=False,
        official_examples=87_599,
    ),
}


class Answer(NamedTuple):
    """A stretch of the paragraph: its text, and the character it starts at."""

    text: str
    start: int


class Question(NamedTuple):
    """A question, the place of its paragraph in `SquadFile.paragraphs`, and its answers; none if unanswerable."""

    id: str
    text: str
    paragraph: int
    answers: tuple[Answer, ...]


class SquadFile(NamedTuple):
    """The content of one file."""

    paragraphs: list[str]
    questions: list[Question]


class SquadData(NamedTuple):
    """Training and dev questions."""

    train: SquadFile
    dev: SquadFile

    def fingerprint(self) -> str:
        """SHA-256 over every paragraph and question: runs with the same one saw the same data."""
        return sha256_of(chain.from_iterable((*file.paragraphs, *file.questions) for file in self))


def load_squad(version: SquadVersion, data_dir: str | Path) -> SquadData:
    """Reads the version's two files in `data_dir`.

    Training learns from the place of each answer and so refuses a wrong one; scoring goes by the text alone.

    Raises:
        ConfigError: a missing or malformed file.
    """
    train, dev = (_read_version(version, Path(data_dir) / name) for name in (version.train_file, version.dev_file))
    problems = [
        f"question {question.id}: answer {answer.text!r} does not stand at character {answer.start} of its paragraph"
        for question in train.questions
        for answer in question.answers[:1]
        if not train.paragraphs[question.paragraph].startswith(answer.text, answer.start)
    ]
    _refuse(Path(data_dir) / version.train_file, problems)
    return SquadData(train, dev)


def _read_version(version: SquadVersion, path: Path) -> SquadFile:
    """A file whose questions all have an answer where the version says so."""
    file = read_squad(path)
    if not version.has_unanswerable:
        bare = (question.id for question in file.questions if not question.answers)
        _refuse(path, (f"question {name}: no answer, expected one in {version.name}; leave it out" for name in bare))
    return file


class _Answer(BaseModel):
    text: str
    answer_start: int


class _Entry(BaseModel):
    id: str
    question: str
    answers: list[_Answer] | None = None
    is_impossible: bool = False


class _Paragraph(BaseModel):
    context: str
    qas: list[_Entry]


class _Article(BaseModel):
    paragraphs: list[_Paragraph]


class _File(BaseModel):
    data: list[_Article]


def read_squad(path: Path, *, labelled: bool = True) -> SquadFile:
    """The questions of one file; unless `labelled`, without answers, whether or not it has some.

    Raises:
        ConfigError: an unreadable file, or malformed entries, each named by its place or its question's id.
    """
    try:
        layout = _File.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"data_dir: cannot read {path} ({error}); expected SQuAD's JSON file") from None
    except ValidationError as error:
        places = [f"{'.'.join(map(str, item['loc'])) or 'JSON'}: {item['msg']}" for item in error.errors()]
        _refuse(path, places)
    paragraphs = [paragraph for article in layout.data for paragraph in article.paragraphs]
    questions = [
        Question(
            entry.id,
            entry.question,
            place,
            tuple(Answer(answer.text, answer.answer_start) for answer in entry.answers or () if labelled),
        )
        for place, paragraph in enumerate(paragraphs)
        for entry in paragraph.qas
    ]
    entries = [entry for paragraph in paragraphs for entry in paragraph.qas]
    _refuse(path, _contradictions(entries, labelled) if entries else ["no questions"])
    return SquadFile([paragraph.context for paragraph in paragraphs], questions)


def _contradictions(entries: list[_Entry], labelled: bool) -> Iterator[str]:
    for identifier, times in Counter(entry.id for entry in entries).items():
        if times > 1:
            yield f"question {identifier}: its id stands there {times} times, expected once"
    for entry in entries if labelled else ():
        if entry.answers is None:
            yield f"question {entry.id}: no answers"
            continue
        if entry.is_impossible == bool(entry.answers):
            yield f"question {entry.id}: is_impossible is {entry.is_impossible} with {len(entry.answers)} answers"
        if any(not answer.text.strip() for answer in entry.answers):
            yield f"question {entry.id}: an answer without text"


def _refuse(path: Path, problems: Iterable[str]) -> None:
    """Raises the problems, the first few in full, if there are any."""
    lines = [f"data_dir: {path}: {problem}" for problem in problems]
    more = len(lines) - PROBLEMS_SHOWN
    if lines:
        raise ConfigError(
            *lines[:PROBLEMS_SHOWN], *([f"data_dir: {path}: {more} more malformed entries"] if more > 0 else [])
        )
