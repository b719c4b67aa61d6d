"""SQuAD 2.0 and 1.1 in their official JSON layout: paragraphs, the questions asked of each, and their answers."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pydantic.dataclasses
from pydantic import BaseModel, Field, ValidationError

from electra_sampler.foundation.config import few, refuse, shown
from electra_sampler.foundation.files import read_file
from finetune.running.records import Task, sha256_of


@dataclass(frozen=True, kw_only=True)
class SquadVersion(Task):
    """One of SQuAD's two releases, 1.1 and 2.0."""

    metrics: tuple[str, ...] = ("f1", "exact")
    has_unanswerable: bool


VERSIONS = {
    "2.0": SquadVersion(name="SQuAD 2.0", has_unanswerable=True, official_examples=130_319),
    "1.1": SquadVersion(name="SQuAD 1.1", has_unanswerable=False, official_examples=87_599),
}
TASKS = {version.name: version for version in VERSIONS.values()}


@pydantic.dataclasses.dataclass(frozen=True)
class Answer:
    """An answer: a span of the paragraph, given by its text and the character it starts at."""

    text: str
    start: int = Field(alias="answer_start", ge=0)


class Question(NamedTuple):
    """A question, the place of its paragraph in `SquadFile.paragraphs`, and its answers; none if unanswerable."""

    id: str
    text: str
    paragraph: int
    answers: tuple[Answer, ...]


class SquadFile(NamedTuple):
    """The paragraphs and questions of one SQuAD file."""

    paragraphs: list[str]
    questions: list[Question]


class SquadData(NamedTuple):
    """The training file and the dev file of one release."""

    train: SquadFile
    dev: SquadFile

    def fingerprint(self) -> str:
        """Returns the SHA-256 over all paragraphs and questions: equal for equal data."""
        return sha256_of(chain.from_iterable((*file.paragraphs, *file.questions) for file in self))


def load_squad(version: SquadVersion, data_dir: str | Path) -> SquadData:
    """Reads the version's two files in `data_dir`.

    An answer that is not at its stated place is an error in the training file only; the dev file's places are not used.

    Raises:
        ConfigError: a file is missing or malformed.
    """
    paths = [Path(data_dir) / f"{part}-v{version.name.split()[-1]}.json" for part in ("train", "dev")]
    train, dev = (read_squad(path, has_unanswerable=version.has_unanswerable) for path in paths)
    misplaced = (
        f"question {question.id}: answer {answer.text!r} is not at character {answer.start} of its paragraph"
        for question in train.questions
        for answer in question.answers[:1]
        if not train.paragraphs[question.paragraph].startswith(answer.text, answer.start)
    )
    _refuse(f"data_dir: {paths[0]}", misplaced)
    return SquadData(train, dev)


class _Entry(BaseModel):
    id: str = Field(coerce_numbers_to_str=True)
    question: str
    answers: tuple[Answer, ...] | None = None
    is_impossible: bool = False


class _File(BaseModel):
    class Article(BaseModel):
        class Paragraph(BaseModel):
            context: str
            qas: list[_Entry]

        paragraphs: list[Paragraph]

    data: list[Article]


def read_squad(path: Path, *, has_unanswerable: bool = True) -> SquadFile:
    """Reads one SQuAD file.

    Raises:
        ConfigError: the file cannot be read, or has malformed entries, each named by its place or its question's id.
    """
    content = read_file(path, "data_dir", "SQuAD's JSON file")
    source = f"data_dir: {path}"
    try:
        layout = _File.model_validate_json(content.removeprefix(b"\xef\xbb\xbf"))  # a byte order mark
    except ValidationError as error:
        _refuse(
            source,
            (
                f"{'.'.join(map(str, item['loc'])) or 'JSON'}: got {shown(item['input'])}: {item['msg']}; correct it"
                for item in error.errors()
            ),
        )
    paragraphs = [paragraph for article in layout.data for paragraph in article.paragraphs]
    questions = [
        Question(entry.id, entry.question, place, entry.answers or ())
        for place, paragraph in enumerate(paragraphs)
        for entry in paragraph.qas
    ]
    entries = [entry for paragraph in paragraphs for entry in paragraph.qas]
    _refuse(source, _contradictions(entries, has_unanswerable) if entries else ["no questions"])
    return SquadFile([paragraph.context for paragraph in paragraphs], questions)


def _contradictions(entries: list[_Entry], has_unanswerable: bool) -> Iterator[str]:
    listed = Counter(entry.id for entry in entries).items()
    yield from (f"question {one}: its id is listed {times} times, expected once" for one, times in listed if times > 1)
    for entry in entries:
        if entry.answers is None:
            yield f"question {entry.id}: no field answers, expected a list"
        elif entry.is_impossible == bool(entry.answers):
            yield (
                f"question {entry.id}: is_impossible is {entry.is_impossible} with {len(entry.answers)} answers;"
                " expected True without answers, else False"
            )
        elif not entry.answers and not has_unanswerable:
            yield f"question {entry.id}: no answer, expected one in SQuAD 1.1; remove it"
        if any(not answer.text.strip() for answer in entry.answers or ()):
            yield f"question {entry.id}: an answer has no text; give its text"


def _refuse(source: str, problems: Iterable[str]) -> None:
    """Raises a ConfigError if there are problems; it lists the first few and the number of others."""
    refuse(f"{source}: {problem}" for problem in few([*problems], "malformed entries"))
