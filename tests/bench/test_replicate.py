"""Claims about the replication's command: it runs from text to report, and resumes when rerun."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.replicate import ReplicateOptions, phases
from bench.replication import METHODS
from tests.conftest import REPOSITORY


def test_the_methods_of_a_seed_differ_only_in_their_objective():
    commands = [job.command for job in list(phases(ReplicateOptions(seeds=(7,))))[2]]
    assert len(commands) == len(METHODS)
    for command, (name, method) in zip(commands, METHODS.items(), strict=True):
        own = command.replace(f"{name}-seed7", "RUN").replace(f"'{method.row}'", "ROW").replace(method.row, "ROW")
        for override in method.overrides:
            own = own.replace(f" {override}", "")
        assert own == commands[0].replace("electra-seed7", "RUN").replace("ELECTRA", "ROW")


def write_texts(folder: Path) -> None:
    """Writes enough text for shards, and the two tasks in GLUE's layout."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefgh"), size=5)) for _ in range(300)]

    def sentence() -> str:
        return " ".join(random.choice(words, size=int(random.integers(6, 12))))

    documents = ("\n".join(sentence() + "." for _ in range(12)) for _ in range(400))
    (folder / "text.txt").write_text("\n\n".join(documents))
    for task in ("CoLA", "SST-2"):
        (folder / task).mkdir()
    for name, count in (("train", 64), ("dev", 16)):
        rows = [(number % 2, sentence()) for number in range(count)]
        (folder / "CoLA" / f"{name}.tsv").write_text("".join(f"x\t{label}\t\t{text}\n" for label, text in rows))
        sst = "".join(f"{text}\t{label}\n" for label, text in rows)
        (folder / "SST-2" / f"{name}.tsv").write_text(f"sentence\tlabel\n{sst}")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_one_command_runs_from_text_to_report_and_its_rerun_trains_nothing(tmp_path):
    write_texts(tmp_path)
    command = (sys.executable, "bench/replicate.py", "--input", tmp_path / "text.txt", "--data_dir", tmp_path)
    options = ("--output", tmp_path / "out", "--seeds", "0", "--steps", "60")
    first = subprocess.run((*command, *options), cwd=REPOSITORY, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    report = (tmp_path / "out" / "replication.md").read_text()
    assert "NOT passed" in report  # sixty steps learn nothing, and the report says so
    assert all(method.label in report for method in METHODS.values())
    assert (tmp_path / "out" / "replication.png").stat().st_size > 10_000
    again = subprocess.run((*command, *options), cwd=REPOSITORY, capture_output=True, text=True)
    assert again.returncode == 0
    assert (tmp_path / "out" / "replication.md").read_text() == report
