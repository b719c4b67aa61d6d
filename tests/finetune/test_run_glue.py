"""finetune/run_glue.py: one launch does all runs, the next only missing ones."""

import itertools
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from electra_sampler.foundation.machine import bf16_is_faster
from finetune.config import GlueOptions
from finetune.running.records import RunRecord, read_records
from tests.conftest import REPOSITORY
from tests.finetune.conftest import FP32, run_queue
from tests.warm import Warm

SHORT = {"task": ("CoLA",), "epochs": 1, "batch_size": 32, "deepspeed_config": FP32}


def run_here(model: Path, data_dir: Path, output: Path, **options: Any) -> list[RunRecord]:
    return run_queue(GlueOptions, output, **{"model": str(model), "data_dir": str(data_dir)} | SHORT | options)


def test_plain_torch_without_deepspeed_learns_what_zero_1_does(
    stock_model: Path, cola_folder: Path, tmp_path: Path, laptop: dict[str, str]
) -> None:
    paths = ("--model", stock_model, "--data_dir", cola_folder, "--output", tmp_path / "without")
    options = ("--task", "CoLA", "--epochs", "2", "--seeds", "1", "--deepspeed_config", "zero0_fp32")
    command: list[str | Path] = [sys.executable, "finetune/run_glue.py", *paths, *options]
    subprocess.run(command, cwd=REPOSITORY, env=laptop, check=True, timeout=240)
    (without,) = read_records(tmp_path / "without" / "results.jsonl")
    changes = {"epochs": 2, "batch_size": None, "seeds": (1,), "deepspeed_config": "zero1_fp32"}
    (under,) = run_here(stock_model, cola_folder, tmp_path / "with", **changes)
    assert without.train_losses == pytest.approx(under.train_losses, rel=1e-4)


def test_random_weights_are_another_run_and_depend_on_the_seed(
    stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    run_here(stock_model, cola_folder, tmp_path, seeds=(1,))
    records = run_here(stock_model, cola_folder, tmp_path, seeds=(1, 2), random_weights=True)
    assert [record.run.random_weights for record in records] == [False, True, True]
    assert len({record.train_losses for record in records}) == 3


def test_the_default_deepspeed_file_is_found_from_any_folder(
    stock_model: Path, cola_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (record,) = run_here(stock_model, cola_folder, tmp_path / "out", seeds=(1,), deepspeed_config="auto")
    assert record.precision == ("bfloat16" if bf16_is_faster() else "float32")


def test_a_deepspeed_override_is_used_but_does_not_make_another_run(
    stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    overrides = ("deepspeed.zero_optimization.stage=1", "deepspeed.bf16.enabled=true")
    (record,) = run_here(stock_model, cola_folder, tmp_path, seeds=(1,), set=overrides)
    assert record.precision == "bfloat16"
    assert run_here(stock_model, cola_folder, tmp_path, seeds=(1,)) == [record]


def start(model: Path, data_dir: Path, output: Path, *options: str) -> Warm:
    paths = ("--model", model, "--data_dir", data_dir, "--output", output)
    return Warm("finetune/run_glue.py", *paths, "--task", "CoLA", "--batch_size", "8", *options)


def await_epoch(process: Warm, epoch: int) -> None:
    """Reads output until the process reports that this epoch is finished."""
    assert any(f"epoch {epoch}, " in line for line in process.stdout)


def test_several_commands_share_the_runs_of_one_output(stock_model: Path, cola_folder: Path, tmp_path: Path) -> None:
    arguments = (stock_model, cola_folder, tmp_path, "--epochs", "1", "--seeds", "1", "2", "3", "4")
    said = [process.communicate(timeout=400)[0] for process in [start(*arguments) for _ in range(2)]]
    assert sorted(record.run.seed for record in read_records(tmp_path / "results.jsonl")) == [1, 2, 3, 4]
    assert sum(text.count("epoch 1, ") for text in said) == 4  # none was run twice


def test_a_terminated_run_exits_with_75_and_resumes(
    stock_model: Path, cola_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(stock_model, cola_folder, tmp_path, "--epochs", "8", "--seeds", "1")
    await_epoch(process, 1)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=200)[0]
    assert (process.returncode, "stopped on request" in said) == (75, True)
    assert not (tmp_path / "results.jsonl").exists()
    (record,) = run_here(stock_model, cola_folder, tmp_path, seeds=(1,), epochs=8, batch_size=8)
    assert "resumes after step" in capsys.readouterr().out
    assert len(record.train_losses) == 8
    assert not any((tmp_path / "checkpoints").iterdir())


def test_a_new_command_leaves_the_stop_file_of_another_that_is_asked_to_stop(
    stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    first = start(stock_model, cola_folder, tmp_path, "--epochs", "200", "--seeds", "1")
    await_epoch(first, 1)
    first.send_signal(signal.SIGSTOP)  # as if in a long batch: it will check the file later
    try:
        (tmp_path / "stop").touch()
        second = start(stock_model, cola_folder, tmp_path, "--epochs", "1", "--seeds", "2")
        said = second.communicate(timeout=200)[0]
        assert (second.returncode, "stopped on request" in said) == (75, True)
        assert (tmp_path / "stop").exists()
    finally:
        first.send_signal(signal.SIGCONT)
    first.communicate(timeout=200)
    assert first.returncode == 75
    (record,) = run_here(stock_model, cola_folder, tmp_path, seeds=(2,))  # now nobody is asked to stop
    assert (record.run.seed, (tmp_path / "stop").exists()) == (2, False)


def test_a_command_with_nothing_to_do_leaves_the_stop_file(
    stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    run_here(stock_model, cola_folder, tmp_path, seeds=(1,))
    (tmp_path / "stop").touch()
    run_here(stock_model, cola_folder, tmp_path, seeds=(1,))
    assert (tmp_path / "stop").exists()


def test_sets_are_predicted_on_request_even_for_finished_runs(
    stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(cola_folder, tmp_path / "data") / "CoLA"
    (data / "test.tsv").write_text("index\tsentence\n0\tgood word1 .\n7\tbad word2 .\n")
    (record,) = run_here(stock_model, tmp_path / "data", tmp_path / "out", seeds=(1,))
    folder = tmp_path / "out" / "predictions" / record.run.folder_name()
    assert [path.name for path in folder.iterdir()] == ["examples.json"]
    again = run_here(stock_model, tmp_path / "data", tmp_path / "out", seeds=(1,), predict_test=True)
    assert [other.run for other in again] == [record.run] * 2
    (file,) = folder.glob("*/CoLA.tsv")
    lines = file.read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["index", "0", "7"]
    assert {line.split("\t")[1] for line in lines[1:]} <= {"0", "1"}
    assert len(run_here(stock_model, tmp_path / "data", tmp_path / "out", seeds=(1,), predict_test=True)) == 2
    (data / "test.tsv").write_text("index\tsentence\n0\tgood word1 .\n8\tbad word2 .\n")
    assert len(run_here(stock_model, tmp_path / "data", tmp_path / "out", seeds=(1,), predict_test=True)) == 3
    (changed,) = set(folder.glob("*/CoLA.tsv")) - {file}
    assert changed.read_text() == file.read_text().replace("\n7\t", "\n8\t")


@pytest.fixture(scope="module")
def excerpts(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first lines of the real files; QNLI, which has no training file here, uses its dev file in two parts.
    Missing test files have one row.
    """
    folder = tmp_path_factory.mktemp("excerpts")
    for path in sorted((shared_data / "glue").glob("*/*.tsv")):
        (folder / path.parent.name).mkdir(exist_ok=True)
        with path.open("rb") as lines:
            (folder / path.parent.name / path.name).write_bytes(b"".join(itertools.islice(lines, 41)))
    header, *rows = (shared_data / "glue" / "QNLI" / "dev.tsv").read_bytes().splitlines(keepends=True)
    (folder / "QNLI" / "train.tsv").write_bytes(header + b"".join(rows[40:80]))
    for name in ("CoLA/test", "SST-2/test", "MNLI/test_matched", "MNLI/test_mismatched"):
        (folder / f"{name}.tsv").write_text("sentence\tsentence1\tsentence2\nA.\tA.\tB.\n")
    return folder


def test_every_real_task_trains_by_one_command(
    pretrained_model: Path, excerpts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = run_here(pretrained_model, excerpts, tmp_path / "out", task=("all",), seeds=(1,), predict_test=True)
    assert {record.run.task for record in records} == {"CoLA", "SST-2", "MRPC", "STS-B", "MNLI", "QNLI", "RTE"}
    said = capsys.readouterr().out
    assert all(f"{name} is left out: no folder" in said for name in ("QQP", "WNLI"))
    for record in records:
        assert record.collapsed != "non-finite loss"
        folder = tmp_path / "out" / "predictions" / record.run.folder_name()
        assert (excerpts / record.run.task / "test.tsv").exists() == any(folder.glob(f"*/{record.run.task}.tsv"))
