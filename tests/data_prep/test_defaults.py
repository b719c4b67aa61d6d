"""Claims about errors for missing default input: the command at the end of each message works when pasted."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

SOURCES = (
    "electra_sampler",
    "data_prep",
    "pretrain",
    "ds_configs",
    "Makefile",
    "setup.cfg",
    "pyproject.toml",
    "constraints.txt",
)
SCRIPTS = {"data_prep/train_vocab": "data/raw", "data_prep/build_shards": "data/raw", "pretrain/run": "data/wikibooks"}
"""Each script's default input."""


def typed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command typed in this folder, in a shell whose `python` is this one."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def error(command: str, folder: Path) -> str:
    """The single line of a command's error."""
    done = typed(command, folder)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert ": error: " in line
    return line


def last_words(line: str) -> str:
    """The command at its end."""
    return line.rpartition(": ")[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone without data."""
    for name in SOURCES:
        (tmp_path / name).symlink_to(REPOSITORY / name)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_fresh_clone_is_told_its_missing_default_input_and_sent_to_the_quickstart(script: str, clone: Path) -> None:
    line = error(f"python {script}.py", clone)
    assert f"{Path(script).name}.py: error: " in line and SCRIPTS[script] in line
    assert last_words(line) == "python -m electra_sampler.quickstart.run"


def test_own_text_leads_to_a_vocabulary_and_then_to_shards(clone: Path, corpus: Path) -> None:
    """A user with text in data/raw is led from one command to the next."""
    (clone / "data").mkdir()
    (clone / "data" / "raw").symlink_to(corpus)
    build = "python -m data_prep.build_shards --output data/wikibooks"
    done = typed("python pretrain/run.py", clone)
    assert done.returncode == 2
    assert f"build them: {build}; or try the quickstart" in done.stderr
    train = last_words(error(build, clone))
    assert train == "python -m data_prep.train_vocab"
    for command in (train, build):
        done = typed(command, clone)
        assert done.returncode == 0, done.stderr


def test_a_vocabulary_is_learned_from_the_input_that_was_given(clone: Path, corpus: Path) -> None:
    (clone / "my text").symlink_to(corpus)
    words = last_words(error("python data_prep/build_shards.py --input 'my text'", clone))
    assert shlex.split(words) == ["python", "-m", "data_prep.train_vocab", "--input", "my text"]
    assert typed(words, clone).returncode == 0
    assert (clone / "data" / "vocab" / "vocab.txt").is_file()
