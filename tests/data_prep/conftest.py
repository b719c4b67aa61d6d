"""A small corpus, vocabulary and built shards that the tests of this package share."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_prep.build_shards import BuildOptions, main
from data_prep.tokens import SPECIAL_TOKENS
from tests.conftest import REPOSITORY

SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "so", "ta", "vu")


def random_document(random: np.random.Generator, sentences: int) -> str:
    """Sentences of made-up words, a few to a line; some words need three pieces."""
    words = ["".join(random.choice(SYLLABLES, random.integers(1, 4))) for _ in range(sentences * 9)]
    texts = [" ".join(words[first : first + 9]).capitalize() + "." for first in range(0, len(words), 9)]
    return "\n".join(" ".join(texts[first : first + 3]) for first in range(0, sentences, 3))


@pytest.fixture(scope="session")
def vocab(tmp_path_factory) -> Path:
    """A vocab.txt with the special tokens, the syllables, their `##` forms and a full stop."""
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *SYLLABLES, *("##" + part for part in SYLLABLES), "."]) + "\n")
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Eight files of twelve documents, about 100 kB."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    for number in range(8):
        documents = [random_document(random, int(random.integers(1, 60))) for _ in range(12)]
        (folder / f"part-{number}.txt").write_text("\n\n".join(documents) + "\n")
    return folder


@pytest.fixture(scope="session")
def options(corpus, vocab, tmp_path_factory) -> BuildOptions:
    """Options of a build of several chunks, with something held out."""
    return BuildOptions(
        input=(corpus,),
        output=tmp_path_factory.mktemp("shards") / "built",
        vocab=str(vocab),
        seq_length=64,
        held_out=0.1,
        chunk_mb=0.02,
        workers=1,
    )


@pytest.fixture(scope="session")
def built(options) -> Path:
    """The folder of that build; not to be written to."""
    assert main(options) == 0
    return options.output


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def run_script(*arguments: object, **settings) -> subprocess.CompletedProcess:
    """Runs `python ARGUMENTS` in the repository's root, as a user does."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, **settings)


def command_of(options: BuildOptions) -> list[str]:
    """The command line that gives these options."""
    words = ["data_prep/build_shards.py", "--input", *map(str, options.input)]
    for name in ("output", "vocab", "seq_length", "held_out", "chunk_mb", "workers"):
        words += [f"--{name}", str(getattr(options, name))]
    return words
