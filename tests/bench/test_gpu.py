"""Claims about the GPU script, on a CPU as far as it goes: it checks, it notices, it ends in time."""

import json
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

import bench.gpu_checks
from bench.gpu import GpuOptions, Part, chosen_parts, failures, run_part, with_seconds
from bench.gpu_checks import check_distribution, check_precision, outcome, setting
from pretrain.encoder import ElectraEncoder
from pretrain.replacement import sample
from tests.conftest import REPOSITORY


def run(*arguments):
    command = (sys.executable, "bench/gpu.py", "--device", "cpu", *arguments)
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


@pytest.mark.long
def test_on_a_cpu_it_checks_what_a_cpu_can_do_profiles_a_step_and_says_what_it_skipped(tmp_path):
    finished = run("--output", tmp_path, "--parts", "checks", "profile")
    assert finished.returncode == 0, finished.stdout
    results = json.loads((tmp_path / "results.json").read_text())
    outcomes = {check["name"]: check["outcome"] for check in results["checks"]}
    assert set(outcomes.values()) == {"passed", "skipped"}
    assert {name for name, what in outcomes.items() if what == "skipped"} == {
        *(f"{objective} compiled" for objective in ("electra", "hp_loss", "hp_dist")),
        *(f"engine zero1_fp16 {objective}" for objective in ("electra", "hp_loss", "hp_dist")),
        "no synchronisation",
    }
    assert "fp16 on a CPU" in (tmp_path / "log.txt").read_text()
    assert "aten::" in (tmp_path / "profile.txt").read_text()
    assert (tmp_path / "trace.json.gz").stat().st_size < 16e6


@pytest.mark.long
def test_the_table_of_steps_is_kept(tmp_path):
    finished = run("--output", tmp_path, "--parts", "step")
    assert finished.returncode == 0, finished.stdout
    assert "hp_loss" in (tmp_path / "log.txt").read_text()


def test_a_gpu_that_is_not_there_is_a_failure_and_not_a_pass():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match="asked for cuda, found cpu"):
        setting("cuda")


@pytest.mark.long
def test_a_part_that_stands_still_is_ended_and_counts_as_failed(tmp_path):
    with (tmp_path / "log.txt").open("w") as log:
        sleeping = run_part(Part("sleeping", ("sleep", "60"), 0.5), 0.2, log)
        good = run_part(Part("good", (sys.executable, "-c", "print('seen')"), 0.5), 30, log)
    assert sleeping["seconds"] < 10
    assert failures({"parts": {"sleeping": sleeping, "good": good}}) == ["sleeping"]
    assert "seen" in (tmp_path / "log.txt").read_text()


def test_all_parts_together_have_no_more_than_the_time_there_is(tmp_path):
    parts = list(chosen_parts(GpuOptions(output=tmp_path)))
    assert sum(part.share for part in parts) == pytest.approx(1, abs=0.01)
    (_, first), *_ = with_seconds(parts, deadline=time.monotonic() + 570)
    assert first == pytest.approx(0.3 * 570, rel=0.05)


def test_a_sampler_that_is_off_is_noticed(monkeypatch):
    where = setting("cpu")
    assert outcome(partial(check_distribution, where))["outcome"] == "passed"
    monkeypatch.setattr(
        bench.gpu_checks, "sample", lambda log_weights_XV, uniform_X: sample(log_weights_XV * 0.95, uniform_X)
    )
    assert outcome(partial(check_distribution, where))["outcome"] == "failed"


def test_a_fast_path_that_is_off_is_noticed(monkeypatch):
    where = setting("cpu")
    check = partial(check_precision, where, "hp_loss", torch.bfloat16)
    assert outcome(check)["outcome"] == "passed"
    monkeypatch.setattr(ElectraEncoder, "forward", wrong_in_half_precision(ElectraEncoder.forward))
    assert outcome(check)["outcome"] == "failed"


def wrong_in_half_precision(forward):
    """Hidden states a third too large, as of a kernel that scales wrongly."""

    def wrong(self, *arguments):
        hidden_BLH = forward(self, *arguments)
        return hidden_BLH if hidden_BLH.dtype == torch.float32 else hidden_BLH * 1.33

    return wrong
