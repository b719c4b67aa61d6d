"""The token classification tasks, and their files: sentences with a label on each word.

A `.conllu` file is read as CoNLL-U (the label is UPOS), any other as CoNLL columns: the word first, its label last,
separated by tabs or spaces; an empty line ends a sentence.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from electra_sampler.foundation.config import ConfigError, shown
from finetune.running.records import Task, answers_folder, sha256_of

SPLITS = {"train": ("train",), "dev": ("dev", "valid"), "test": ("test",)}
"""Parts of a file's name that identify its split."""
CONLLU_COLUMNS, CONLLU_WORD, CONLLU_LABEL = 10, 1, 3
OUTSIDE = "O"


@dataclass(frozen=True, kw_only=True)
class TaggingTask(Task):
    """A token classification task: every word has a label."""

    entities: bool
    """Whether labels are IOB2 and scored by entity, not by word."""


TASKS = {
    task.name: task
    for task in (
        TaggingTask(name="NER", metrics=("f1", "precision", "recall"), entities=True),
        TaggingTask(name="POS", entities=False),
    )
}


class Sentence(NamedTuple):
    """One sentence: its words and the label of each."""

    words: tuple[str, ...]
    labels: tuple[str, ...]


class TaggingData(NamedTuple):
    """The sentences of each file; test sentences only if requested."""

    train: list[Sentence]
    dev: list[Sentence]
    test: list[Sentence]

    def fingerprint(self) -> str:
        """Returns the SHA-256 over all training and dev sentences."""
        return sha256_of(chain(self.train, self.dev))

    def test_answers(self) -> list[str]:
        """Returns the path of the predictions for the test file in a run's folder; empty without a test file."""
        return [f"{answers_folder(self.test)}/test.conll"] if self.test else []


def load_tagging(task: TaggingTask, data_dir: Path, *, test: bool = False) -> TaggingData:
    """Reads the training and dev files of a folder, and the test file if requested.

    Raises:
        ConfigError: a file is missing or malformed.
    """
    train, dev = (read_tagged(find_file(data_dir, split), task) for split in ("train", "dev"))
    return TaggingData(train, dev, read_tagged(find_file(data_dir, "test"), task) if test else [])


def find_file(folder: Path, split: str) -> Path:
    """Returns the one file of a folder that has the split in its name, such as train.conll or en_gum-ud-train.conllu.

    The raw text that releases of Universal Dependencies put beside a .conllu file, under the same name, does not count.

    Raises:
        ConfigError: there is no such file, or several.
    """
    if not folder.is_dir():
        raise ConfigError(f"data_dir: no folder {folder}; expected one with a train and a dev file in CoNLL columns")
    found = sorted(
        path.name
        for path in folder.iterdir()
        if path.is_file() and any(name in path.name for name in SPLITS[split])
        if path.suffix != ".txt" or not path.with_suffix(".conllu").is_file()
    )
    if len(found) != 1:
        raise ConfigError(
            f"data_dir: {folder} has {len(found)} files with {' or '.join(map(repr, SPLITS[split]))} in their names"
            f"{': ' if found else ''}{', '.join(found)}; expected one, such as {split}.conll or {split}.conllu"
        )
    return folder / found[0]


def read_tagged(path: Path, task: TaggingTask) -> list[Sentence]:
    """Reads the sentences of one file.

    Raises:
        ConfigError: a line, named by its number, is malformed.
    """
    # at line feeds only: words may hold Unicode's others
    lines = [line.rstrip("\r") for line in path.read_bytes().decode("utf-8-sig").split("\n")]
    read_row = read_conllu if path.suffix == ".conllu" else conll_reader(lines)
    sentences: list[Sentence] = []
    for is_between, block in groupby(enumerate(lines, 1), lambda numbered: is_between_sentences(numbered[1])):
        rows: list[tuple[str, str]] = []
        for number, line in () if is_between else block:
            try:
                if row := read_row(line):
                    if not all(row):
                        raise ValueError(f"got {shown(line)}, expected a word and a label")
                    if task.entities:
                        check_iob2(row[1], rows[-1][1] if rows else OUTSIDE)
                    rows.append(row)
            except ValueError as error:
                raise ConfigError(f"data_dir: {path}:{number}: {error}") from None
        if rows:
            sentences.append(Sentence(*zip(*rows, strict=True)))
    if not sentences:
        raise ConfigError(f"data_dir: {path} has no sentences; expected one word and its label per line")
    if all(re.fullmatch(r"[01]([-.]\d+)?( \d+([-.]\d+)?)*", " ".join(sentence.words)) for sentence in sentences):
        raise ConfigError(
            f"data_dir: {path} has words {shown(sentences[0].words)}, the numbers of its words; expected the words in"
            " the first column; remove the column of numbers, or give a file in CoNLL-U the suffix .conllu"
        )
    return sentences


def is_between_sentences(line: str) -> bool:
    return not line.strip(" \t") or line.startswith("-DOCSTART-")


def conll_reader(lines: list[str]) -> Callable[[str], tuple[str, str] | None]:
    """Returns a function that reads a CoNLL line. The first line that is not a comment sets the number of columns, and
    their separator: a tab if that line has one, else spaces.
    """
    first = next((line for line in lines if not is_between_sentences(line) and not line.startswith("#")), "")
    separator = "\t" if "\t" in first else " +"
    return partial(read_conll, separator=separator, width=len(re.split(separator, first.strip(" "))))


def read_conll(line: str, separator: str, width: int) -> tuple[str, str] | None:
    """Returns word and label of a line in CoNLL columns, or `None` for a comment.

    A line that begins with # is a comment unless it has `width` columns.

    Raises:
        ValueError: the line does not have `width` columns, or `width` is less than 2.
    """
    columns = re.split(separator, line.strip(" "))
    if line.startswith("#") and len(columns) != width:
        return None
    if len(columns) != width or width < 2:
        raise ValueError(f"{len(columns)} columns, expected {max(width, 2)}: the word first, its label last")
    return columns[0], columns[-1]


def read_conllu(line: str) -> tuple[str, str] | None:
    """Returns word and UPOS of a CoNLL-U line; `None` for a comment, a multiword token (1-2) or an empty node (1.1).

    Raises:
        ValueError: the line has a wrong number of columns, no word number, or no UPOS.
    """
    if line.startswith("#"):
        return None
    columns = line.split("\t")
    if len(columns) != CONLLU_COLUMNS:
        raise ValueError(f"{len(columns)} columns, expected CoNLL-U's {CONLLU_COLUMNS}, separated by tabs")
    if re.fullmatch(r"\d+[-.]\d+", columns[0]):
        return None
    if not re.fullmatch(r"\d+", columns[0]):
        raise ValueError(f"ID {shown(columns[0])}, expected a number such as 1, 1-2 or 1.1")
    if columns[CONLLU_LABEL] == "_":
        raise ValueError("no part-of-speech tag (UPOS) in column 4; expected an annotated file")
    return columns[CONLLU_WORD], columns[CONLLU_LABEL]


def check_iob2(label: str, previous: str) -> None:
    """Checks that a label is valid after the previous one: O, B-TYPE, or I-TYPE after B-TYPE or I-TYPE.

    Raises:
        ValueError: the label is not valid there.
    """
    if label != OUTSIDE and not re.fullmatch("[BI]-.+", label):
        raise ValueError(f"label {shown(label)}, expected O, B-TYPE or I-TYPE (IOB2)")
    if label.startswith("I-") and previous[2:] != label[2:]:
        raise ValueError(
            f"label {shown(label)} follows {shown(previous)}, expected B{label[1:]} there; convert the file to IOB2"
        )
