"""Claims about the command of a study: it runs from text to report, resumes, and continues from committed cells."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_sampler.foundation.locks import Lock
from tests import warm
from tests.conftest import REPOSITORY

STUDY: dict[str, Any] = {
    "title": "A rehearsal",
    "preset": "tiny",
    "vocab_size": 300,
    "seq_length": 32,
    "steps": 6,
    "warmup_steps": 1,
    "set": ["batch_size=8"],
    "rows": [
        {"name": "base", "row": "ELECTRA"},
        {"name": "HP_Loss b=2", "row": "HP_Loss b=2"},
        {"name": "MLM", "objective": "mlm"},
    ],
    "baseline": "base",
    "seeds": [0, 1],
    "reference": {"row": "base", "seed": 1000},
    "held_out_sequences": 32,
    "oracle_sequences": 32,
    "blimp": ["discriminator", "likelihood"],
    "probes": [
        {"task": "CoLA", "metric": "matthews", "epochs": 1, "seeds": [1, 2]},
        {
            "task": "SQuAD",
            "metric": "f1",
            "epochs": 1,
            "seeds": [1],
            "options": ["--max_length", "32", "--max_question", "12", "--stride", "8"],
        },
    ],
    "measures": ["difficulty loss", "frozen AUC", "BLiMP", "BLiMP likelihood", "CoLA matthews", "SQuAD f1"],
    "predictions": [{"text": "more", "measure": "BLiMP", "row": "HP_Loss b=2", "minus": "base"}],
}


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> None:
    """Writes the study, enough text for shards, and small sets in the layouts of CoLA, SQuAD and BLiMP."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefgh"), size=5)) for _ in range(300)]

    def sentence() -> str:
        return " ".join(random.choice(words, size=int(random.integers(6, 12))))

    documents = ("\n".join(sentence() + "." for _ in range(12)) for _ in range(400))
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    for name in ("CoLA", "squad", "blimp"):
        (tmp_path / name).mkdir()
    for name, count in (("train", 32), ("dev", 16)):
        rows = [(number % 2, sentence()) for number in range(count)]
        (tmp_path / "CoLA" / f"{name}.tsv").write_text("".join(f"x\t{label}\t\t{text}\n" for label, text in rows))
        paragraphs = []
        for number in range(count):
            context = sentence()
            answer = {"text": context.split()[1], "answer_start": len(context.split()[0]) + 1}
            question = {"id": f"{name}{number}", "question": sentence(), "is_impossible": number % 2 == 1}
            paragraphs.append({"context": context, "qas": [question | {"answers": [] if number % 2 else [answer]}]})
        (tmp_path / "squad" / f"{name}-v2.0.json").write_text(
            json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})
        )
    pair = {"field": "syntax", "linguistics_term": "islands", "UID": "p"}
    pairs = [pair | {"sentence_good": sentence(), "sentence_bad": sentence()} for _ in range(20)]
    (tmp_path / "blimp" / "p.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in pairs))
    (tmp_path / "study.json").write_text(json.dumps(STUDY))


def command(folder: Path, *options: str) -> list[str | Path]:
    data = ("--data_dir", folder, "--squad", folder / "squad", "--blimp", folder / "blimp")
    typed = ("bench/study.py", folder / "study.json", "--input", folder / "text.txt", *data)
    return [*typed, "--results", folder / "results", *options]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command(folder, *options)], cwd=REPOSITORY, capture_output=True, text=True)


def refused(folder: Path, *options: str) -> list[str]:
    """The lines of its errors of a command that must be refused."""
    done = warm.run(*command(folder, *options))
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr.splitlines()


def test_a_second_study_in_an_output_folder_in_use_is_refused(tmp_path: Path) -> None:
    with Lock(tmp_path / "output" / "lock"):
        (line,) = refused(tmp_path, "--output", str(tmp_path / "output"))
    assert f"output: {tmp_path}/output is in use by process {os.getpid()} on " in line and "name another" in line


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_study_runs_from_text_to_report_and_another_machine_continues_it(tmp_path: Path) -> None:
    here, there = ("--output", str(tmp_path / "here")), ("--output", str(tmp_path / "there"))

    first = run(tmp_path, *here, "--seeds", "0", "--rows", "base")
    assert first.returncode == 0, first.stdout + first.stderr
    whole = tmp_path / "results/results.json"
    cell = json.loads(whole.read_text())["cells"]["base-seed0"]
    assert cell["numbers"].keys() >= {
        *STUDY["measures"],
        "MLM loss",
        "unigram entropy",
        "BLiMP, syntax",
        "BLiMP likelihood, syntax",
        "KL to the oracle, p_G",
    }
    assert all(cell["numbers"][name] is not None for name in STUDY["measures"])
    assert cell["seconds"].keys() == {"train", "evaluate", "export", "blimp", "CoLA", "SQuAD"}
    assert str(tmp_path) not in whole.read_text()

    (tmp_path / "here/runs/HP_Loss-b=2-seed0").mkdir()  # a part that fails: its run folder is a stranger's
    (tmp_path / "here/runs/HP_Loss-b=2-seed0/run.json").write_text("{}")
    failed = run(tmp_path, *here, "--seeds", "0")
    assert failed.returncode == 1 and "train-HP_Loss-b=2-seed0: exit code 2" in failed.stdout
    shutil.rmtree(tmp_path / "here/runs/HP_Loss-b=2-seed0")
    second = run(tmp_path, *here, "--seeds", "0")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "base-seed0" not in "".join(line for line in second.stdout.splitlines() if "$" in line)
    report = (tmp_path / "results/report.md").read_text()
    assert "3 of 6 cells" in report and "n=1" in report and "gates not passed" in report
    assert (tmp_path / "results/report.png").stat().st_size > 10_000

    before = json.loads(whole.read_text())["cells"]
    elsewhere = run(tmp_path, *there, "--seeds", "1", "--rows", "base")
    assert elsewhere.returncode == 0, elsewhere.stdout + elsewhere.stderr
    assert "4 of 6 cells" in (tmp_path / "results/report.md").read_text()
    assert not [*(tmp_path / "there/runs").glob("*-seed0")]
    after = json.loads(whole.read_text())["cells"]
    assert after.keys() - before == {"base-seed1"} and before.items() <= after.items()

    (tmp_path / "other.txt").write_text((tmp_path / "text.txt").read_text() + "\n\nOne more.\n")
    other = run(tmp_path, "--output", str(tmp_path / "other"), "--input", str(tmp_path / "other.txt"))
    assert other.returncode == 2
    assert "input: " in other.stderr and "differs from the shards of the cells" in other.stderr
    assert not (tmp_path / "other/runs").exists()

    committed = whole.read_bytes()
    shutil.rmtree(tmp_path / "results/examples")
    again = run(tmp_path, "--report_only", *there)
    assert again.returncode == 0 and "$ python" not in again.stdout
    assert again.stdout == elsewhere.stdout[-len(again.stdout) :] and whole.read_bytes() == committed


def test_a_missing_folder_is_named_before_anything_runs(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "blimp")
    (tmp_path / "blimp").touch()
    (line,) = refused(tmp_path, "--output", str(tmp_path / "out"))
    assert "blimp: " in line and "is not a folder" in line
    assert not (tmp_path / "out").exists()


def test_a_missing_vocabulary_or_model_to_start_from_is_named_before_anything_runs(tmp_path: Path) -> None:
    rows = [STUDY["rows"][0] | {"init_from": ["models/G", "models/D"]}, *STUDY["rows"][1:]]
    study = STUDY | {"vocab_size": None, "vocab": "vocab.txt", "rows": rows}
    (tmp_path / "study.json").write_text(json.dumps(study))
    out = tmp_path / "out"
    lines = refused(tmp_path, "--output", str(out))
    found = [("init_from", out / "models/G"), ("init_from", out / "models/D"), ("vocab", out / "vocab.txt")]
    for line, (field, path) in zip(lines, found, strict=True):
        assert f"{field}: {path} does not exist; the study's paths are relative to --output" in line
    assert not out.exists()


def test_an_unknown_row_or_seed_is_refused(tmp_path: Path) -> None:
    said = "\n".join(refused(tmp_path, "--rows", "bass", "--seeds", "7"))
    assert "rows: got 'bass'" in said and "seeds: got 7, expected one of 0, 1" in said
