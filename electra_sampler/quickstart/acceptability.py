"""A small acceptability task in CoLA's format: intact sentences, and sentences with two words swapped."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from electra_sampler.foundation.config import ConfigError

SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
WORD = re.compile(r"[A-Za-z'’-]+")
FEWEST_WORDS, MOST_WORDS = 5, 20
DEV_SIZE, TRAIN_SIZE = 750, 3000  # Matthews' standard error on 750 sentences is about 0.036
INTACT, SWAPPED = 1, 0  # CoLA's labels: acceptable, unacceptable


def write_task(text: str, folder: Path) -> None:
    """Makes an acceptability task from a text: writes its train.tsv and dev.tsv.

    Raises:
        ConfigError: the text holds too few sentences.
    """
    rows = examples(list(sentences(text)), random.Random(0))
    if len(rows) < DEV_SIZE + TRAIN_SIZE:
        raise ConfigError(
            f"{folder}: got {len(rows)} sentences of {FEWEST_WORDS} to {MOST_WORDS} words, expected at least"
            f" {DEV_SIZE + TRAIN_SIZE}; use a Python in which the project is installed with its dependencies"
        )
    write_rows(folder / "dev.tsv", rows[:DEV_SIZE])
    write_rows(folder / "train.tsv", rows[DEV_SIZE : DEV_SIZE + TRAIN_SIZE])


def sentences(text: str) -> Iterator[str]:
    """Yields a text's distinct sentences, in order, that begin with a capital and are of the right length."""
    for sentence in dict.fromkeys(piece for line in text.splitlines() for piece in SENTENCE_END.split(line)):
        words = WORD.findall(sentence.lower())
        if sentence[:1].isupper() and len(set(words)) >= FEWEST_WORDS and len(words) <= MOST_WORDS:
            yield sentence


def examples(texts: list[str], rng: random.Random) -> list[tuple[int, str]]:
    """Returns a (label, sentence) pair for each text, in random order; labels alternate, and half of the sentences have
    two words swapped.
    """
    shuffled = rng.sample(texts, len(texts))
    return [(INTACT, text) if i % 2 else (SWAPPED, swap_two_words(text, rng)) for i, text in enumerate(shuffled)]


def swap_two_words(sentence: str, rng: random.Random) -> str:
    """Returns the sentence with two different words swapped; punctuation stays in place."""
    words = list(WORD.finditer(sentence))
    pairs = [(a, b) for i, a in enumerate(words) for b in words[i + 1 :] if a[0].lower() != b[0].lower()]
    first, second = rng.choice(pairs)
    between = sentence[first.end() : second.start()]
    return sentence[: first.start()] + second[0] + between + first[0] + sentence[second.end() :]


def write_rows(path: Path, rows: list[tuple[int, str]]) -> None:
    """Writes rows with CoLA's columns, without header: source, label, mark ('*' if unacceptable) and sentence."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"docs\t{label}\t{'' if label == INTACT else '*'}\t{sentence}\n" for label, sentence in rows)
    path.write_text("".join(lines), encoding="utf-8")
