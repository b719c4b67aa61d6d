"""Claims about `blimp.py`."""

import json
import subprocess
import sys

from tests.conftest import REPOSITORY
from tests.finetune.test_minimal_pairs import entry, write_pairs


def run(*arguments):
    command = [sys.executable, REPOSITORY / "finetune" / "blimp.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_models_are_tabulated_beside_untrained_ones(stock_model, tmp_path):
    data = write_pairs(tmp_path / "data", entry(), entry("word1 word2", "word2 bad ,", "semantics"))
    done = run(stock_model, "--data", data, "--random_weights", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out" / "blimp.md").read_text()
    assert done.stdout == table
    assert f"| {stock_model} | {stock_model} (random weights) |" in table
    assert [line.split("|")[1].strip() for line in table.splitlines()[4:]] == [
        "**all**",
        "**semantics**",
        "**syntax**",
        "binding",
    ]
    assert json.loads((tmp_path / "out" / "blimp.json").read_text())["pairs"] == 2


def test_missing_data_is_one_line_and_code_2(stock_model, tmp_path):
    done = run(stock_model, "--data", tmp_path / "none")
    assert done.returncode == 2
    assert done.stderr.startswith("blimp.py: error: data: ")
    assert done.stderr.count("\n") == 1
