"""Claims about errors for missing default input: the command at the end of each message works when pasted."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.train_vocab import VocabularyOptions
from data_prep.train_vocab import main as train_vocab
from electra_sampler.foundation.config import ConfigError, StrictConfig
from pretrain.planning.options import RunOptions
from pretrain.run import main as run
from tests.conftest import typed

Main = Callable[[Any], object]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, without data."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error(main: Main, options: StrictConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        main(options)
    return str(caught.value)


NO_TEXT = "input: data/raw does not exist; put text there, name other text with --input"


@pytest.mark.parametrize(
    ("main", "options", "said"),
    [
        (train_vocab, VocabularyOptions, NO_TEXT),
        (build_shards, BuildOptions, NO_TEXT),
        (run, RunOptions, "data: data/wikibooks does not exist; name existing shards with --data, build them: "),
    ],
)
def test_a_fresh_clone_is_told_its_missing_default_input_and_sent_to_the_quickstart(
    main: Main, options: type[StrictConfig], said: str
) -> None:
    line = error(main, options())
    assert line.startswith(said)
    assert line.endswith("or try the quickstart: python -m electra_sampler.quickstart.run")


def test_own_text_leads_to_a_vocabulary_and_then_to_shards(folder: Path, corpus: Path) -> None:
    """A user with text in data/raw is led from one command to the next."""
    (folder / "data").mkdir()
    (folder / "data" / "raw").symlink_to(corpus)
    build = "python -m data_prep.build_shards --output data/wikibooks"
    assert f"build them: {build}; or try the quickstart" in error(run, RunOptions())
    train = "python -m data_prep.train_vocab"
    assert error(build_shards, BuildOptions()).endswith(f"train one: {train}")
    for command in (train, build):
        typed(command, folder, OMP_NUM_THREADS="1")


def test_a_vocabulary_is_learned_from_the_input_that_was_given(folder: Path, corpus: Path) -> None:
    (folder / "my text").symlink_to(corpus)
    words = error(build_shards, BuildOptions(input=(Path("my text"),))).rpartition(": ")[2]
    assert shlex.split(words) == ["python", "-m", "data_prep.train_vocab", "--input", "my text"]
    typed(words, folder, OMP_NUM_THREADS="1")
    assert (folder / "data" / "vocab" / "vocab.txt").is_file()
