"""Claims about cluster/curate_datatrove.py: user errors are one line; its text is filtered, unique and builds shards.

Whole runs need datatrove: here, or in another environment, ELECTRA_SAMPLER_DATATROVE_PYTHON=VENV/bin/python.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PYTHON = os.environ.get("ELECTRA_SAMPLER_DATATROVE_PYTHON", sys.executable)
SCRIPT = REPOSITORY / "cluster/curate_datatrove.py"


def curate(*options: object, python: str = PYTHON, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, SCRIPT, *map(str, options)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


def assert_one_clear_line(process: subprocess.CompletedProcess[str], *words: str) -> None:
    (line,) = process.stderr.splitlines()
    assert process.returncode == 2
    assert line.startswith("curate_datatrove.py: error: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", ("--input", "--output")),
        ("--input in --output out --filter c5", ("filter", "'c5'", "'gopher', 'c4' or 'fineweb'")),
        ("--input in --output out --executor slurm", ("partition", "sinfo")),
        ("--input in --output out --partition cpu", ("partition", "'cpu'", "local")),
        ("--input in --output out --sbatch account=mine", ("sbatch", "slurm")),
        ("--input in --output out --executor slurm --partition cpu --sbatch account", ("sbatch", "'account'", "KEY=")),
        ("--input in --output out --language en", ("language", "--language_model")),
        ("--input in --output out --language en --language_model no/such.bin", ("language_model", "no/such.bin")),
        ("--input in --output out --decontaminate no/such.tsv", ("decontaminate", "no/such.tsv")),
        ("--input in --output out --tasks 0", ("tasks", "got '0'")),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_written(
    options: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_clear_line(curate(*options.split(), python=sys.executable), *words)
    assert not [*tmp_path.iterdir()]


def test_without_datatrove_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "datatrove.py").write_text("raise ImportError")
    process = curate("--input", tmp_path, "--output", tmp_path / "out", python=sys.executable, PYTHONPATH=str(tmp_path))
    assert_one_clear_line(process, "datatrove is not installed", "pip install")
    assert not (tmp_path / "out").exists()
