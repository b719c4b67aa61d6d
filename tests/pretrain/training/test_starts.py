"""Claims about the record of each start and its phases; test_train.py has two launched ranks."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from torch import nn

from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import start_processes
from pretrain.training.starts import code_version, record_start
from tests.pretrain.engine import engine_worker as worker


def test_every_start_is_recorded_with_machine_precision_code_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("SECRET", "hidden")
    model = nn.Linear(2, 2)
    config = worker.resolved_config("zero1_fp32", world_size=1)
    engine = Engine(model, parameter_groups(model, 0.01), config, start_processes())
    for step in (0, 40):
        record_start(tmp_path, engine, step, matrix_peak=2e12, fp32_peak=3e12)
    records = [json.loads(line) for line in (tmp_path / "starts.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 40]
    assert (records[0]["precision"], records[0]["zero_stage"], records[0]["processes"]) == ("float32", 1, 1)
    assert (records[0]["matrix_peak_tflops"], records[0]["fp32_peak_tflops"]) == (2.0, 3.0)
    assert records[0]["environment"]["NCCL_DEBUG"] == "WARN"
    assert "hidden" not in json.dumps(records)


def test_the_code_is_identified_by_its_commit_and_uncommitted_changes_are_marked(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert code_version(tmp_path) is None
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "One")
    assert code_version(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert code_version(tmp_path) == git("rev-parse", "HEAD") + " + changes"
    (tmp_path / "site-packages").mkdir()
    assert code_version(tmp_path / "site-packages") is None, "an environment inside another repository"
