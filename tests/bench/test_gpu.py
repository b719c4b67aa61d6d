"""Claims about the GPU script, as far as a CPU can test them: its checks run, detect errors and end in time."""

import json
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

import bench.gpu_checks
from bench.gpu import GpuOptions, Part, chosen_parts, failures, run_part, with_seconds
from bench.gpu_checks import MISSED, check_distribution, check_draws, check_precision, missed_by, outcome
from bench.gpu_setting import setting
from pretrain.method.sampling import inverse_cdf
from pretrain.model.encoder import ElectraEncoder
from tests.conftest import REPOSITORY


def run(folder, *arguments):
    """Runs the script from a folder outside the repository."""
    command = (sys.executable, REPOSITORY / "bench/gpu.py", "--device", "cpu", "--output", "out", *arguments)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.long
def test_on_a_cpu_it_runs_the_possible_checks_profiles_a_step_and_names_skipped_checks(tmp_path):
    finished = run(tmp_path, "--parts", "checks", "profile")
    assert finished.returncode == 0, finished.stdout
    results = json.loads((tmp_path / "out/results.json").read_text())
    outcomes = {check["name"]: check["outcome"] for check in results["parts"]["checks"]["found"]}
    assert set(outcomes.values()) == {"passed", "skipped"}
    assert {name for name, what in outcomes.items() if what == "skipped"} == {
        *(f"{objective} compiled" for objective in ("electra", "hp_loss", "hp_dist")),
        *(f"engine zero1_fp16 {objective}" for objective in ("electra", "hp_loss", "hp_dist")),
        "no synchronisation",
    }
    assert "fp16 on a CPU" in (tmp_path / "out/log.txt").read_text()
    assert "aten::" in (tmp_path / "out/profile.txt").read_text()
    assert (tmp_path / "out/trace.json.gz").stat().st_size < 16e6


@pytest.mark.long
def test_the_table_of_steps_is_kept_in_the_results(tmp_path):
    finished = run(tmp_path, "--parts", "step")
    assert finished.returncode == 0, finished.stdout
    assert "hp_loss" in (tmp_path / "out/log.txt").read_text()
    (part,) = json.loads((tmp_path / "out/results.json").read_text())["parts"].values()
    assert all(row["seconds"] > 0 for row in part["found"]["contenders"].values())
    assert part["found"]["contenders"].keys() == {"eager", "electra", "hp_loss", "hp_dist"}


def test_partial_results_of_a_killed_part_are_kept(tmp_path):
    code = f"import pathlib, time; pathlib.Path({str(tmp_path / 'found.json')!r}).write_text('[1]'); time.sleep(60)"
    (tmp_path / "found.json").write_text("[0]")  # left by an earlier run
    with (tmp_path / "log.txt").open("w") as log:
        ended = run_part(Part("one", (sys.executable, "-c", code), 1, "found.json"), 3, tmp_path, log)
    assert ended["found"] == [1] and ended["exit"] == "ended after 3 s"


def test_a_missing_gpu_is_a_failure_and_not_a_pass():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match="asked for cuda, found cpu"):
        setting("cuda")


@pytest.mark.long
def test_a_part_that_hangs_is_killed_and_counts_as_failed(tmp_path):
    with (tmp_path / "log.txt").open("w") as log:
        sleeping = run_part(Part("sleeping", ("sleep", "60"), 0.5), 0.2, tmp_path, log)
        good = run_part(Part("good", (sys.executable, "-c", "print('seen')"), 0.5), 30, tmp_path, log)
    assert sleeping["seconds"] < 10
    assert failures({"parts": {"sleeping": sleeping, "good": good}}) == ["sleeping"]
    assert "seen" in (tmp_path / "log.txt").read_text()


def test_all_parts_together_stay_within_the_time_limit(tmp_path):
    parts = list(chosen_parts(GpuOptions(output=tmp_path)))
    assert sum(part.share for part in parts) == pytest.approx(1, abs=0.01)
    (_, first), *_ = with_seconds(parts, deadline=time.monotonic() + 510)
    assert first == pytest.approx(0.3 * 510, rel=0.05)


def test_a_wrong_sampling_distribution_is_detected(monkeypatch):
    where = setting("cpu")
    assert outcome(partial(check_distribution, where))["outcome"] == "passed"
    monkeypatch.setattr(bench.gpu_checks, "inverse_cdf", lambda p_XV, uniform_X: inverse_cdf(p_XV**0.95, uniform_X))
    assert outcome(partial(check_distribution, where))["outcome"] == "failed"


def test_a_single_wrong_draw_is_detected(monkeypatch):
    def wrong_once(weights_XV, uniform_X):
        tokens_X, total_X = inverse_cdf(weights_XV, uniform_X)
        tokens_X[7] += 1
        return tokens_X, total_X

    where = setting("cpu")
    assert outcome(partial(check_draws, where))["outcome"] == "passed"
    monkeypatch.setattr(bench.gpu_checks, "inverse_cdf", wrong_once)
    assert outcome(partial(check_draws, where))["outcome"] == "failed"


def test_a_draw_changed_by_rounding_is_not_an_error():
    """Uniforms at the boundary between two tokens, which another order of summation moves."""
    weights_XV, end = torch.ones(3, 8), 3 / 8
    uniform_X = torch.tensor([end - 1e-7, end + 1e-7, end + 1e-3])
    missed_X = missed_by(weights_XV, uniform_X, torch.tensor([3, 2, 2]))
    assert (missed_X[:2] > 0).all() and (missed_X[:2] < MISSED).all()
    assert missed_X[2] == pytest.approx(1e-3, rel=1e-3)


def test_a_wrong_fast_path_is_detected(monkeypatch):
    where = setting("cpu")
    check = partial(check_precision, where, "hp_loss", torch.bfloat16)
    assert outcome(check)["outcome"] == "passed"
    monkeypatch.setattr(ElectraEncoder, "forward", wrong_in_half_precision(ElectraEncoder.forward))
    assert outcome(check)["outcome"] == "failed"


def wrong_in_half_precision(forward):
    """Makes hidden states a third too large, as a kernel with a wrong scale would."""

    def wrong(self, *arguments):
        hidden_BLH = forward(self, *arguments)
        return hidden_BLH if hidden_BLH.dtype == torch.float32 else hidden_BLH * 1.33

    return wrong
