"""finetune/predict.py: one JSON object per line of input; a mistake is one line and exit code 2."""

import json
import subprocess
from pathlib import Path

import pytest

from finetune.config import GlueOptions
from tests import warm
from tests.finetune.conftest import run_queue


def run(model: Path, source: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return warm.run("finetune/predict.py", model, source, given=given)


@pytest.fixture(scope="module")
def model(stock_model: Path, cola_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("out")
    given = {"model": str(stock_model), "task": ("CoLA",), "data_dir": str(cola_folder), "output": output}
    run_queue(GlueOptions.from_values(given | {"epochs": 1, "batch_size": 64, "seeds": (1,)}))
    (folder,) = (output / "finetuned").iterdir()
    return folder


def test_standard_input_is_predicted_line_by_line(model: Path) -> None:
    done = run(model, "-", "word1 good .\nword2 bad .\n")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line).keys() for line in done.stdout.splitlines()] == [{"label", "score"}] * 2


def test_a_mistake_is_one_line_and_code_2(model: Path, tmp_path: Path) -> None:
    for source, given, problem in (
        ("-", "word1\n\nword2\n", "input: -:2: got '', expected one example per line"),
        ("/dev/zero", "", "input: /dev/zero is a folder, a pipe or a device; expected a file of text in UTF-8, or -"),
    ):
        done = run(model, source, given)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"predict.py: error: {problem}")
