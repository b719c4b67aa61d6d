"""The faults of ranks and numbers in docs/evidence/faults.md, each caused in a whole run.

`pytest -m long -rP tests/reliability` prints the seconds for the table. test_damage.py covers faults of files.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain.runs.log import read_metrics
from tests.conftest import REPOSITORY
from tests.pretrain.engine.checkpoints import sign
from tests.pretrain.whole_runs import rank_of, read_complete, run_arguments, wait_for_step
from tests.reliability.runs import (
    Heard,
    Launch,
    alone,
    as_killed_after,
    assert_nothing_was_lost,
    checkpoint_of,
    on_two_ranks,
    supervised,
    tell,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
HANG_TIMEOUT = 10
"""Seconds: the shortest timeout that a start on a busy machine does not exceed."""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_and_its_run_restarted(
    rank: int, whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    folder = tmp_path / "run"
    run = supervised(launch, shards_folder, folder)
    wait_for_step(folder, 30)
    moment = time.monotonic()
    os.kill(rank_of(folder, rank), signal.SIGKILL)
    named = run.wait_for(f"supervise: rank {rank} on ", moment)
    restarted = run.wait_for("supervise: restart 1 of 1, from step-00000020", moment)
    detected = run.wait_for("supervise: the command ended", moment)
    output = run.ended(0)
    assert output.count("supervise: rank ") == 1 and "exited without a message" in output
    assert "lost the connection to rank" in output and "Traceback" not in output, "which is in the survivor's log"
    assert_nothing_was_lost(folder, whole)
    tell(detected=detected, named=named, restarted=restarted)


def test_ranks_whose_launcher_is_killed_save_and_are_restarted(
    whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    folder = tmp_path / "run"
    run = supervised(launch, shards_folder, folder)
    wait_for_step(folder, 30)
    moment = time.monotonic()
    os.kill(launcher_under(run.process.pid), signal.SIGKILL)
    detected = run.wait_for("its launcher has exited; saving and stopping", moment)
    saved = run.wait_for("saved ", moment)
    restarted = run.wait_for("supervise: restart 1 of 1, from step-", moment)
    assert "supervise: rank" not in run.ended(0), "no rank is to blame"
    assert_nothing_was_lost(folder, whole)
    tell(detected=detected, saved=saved, restarted=restarted)


def launcher_under(supervisor: int) -> int:
    """PID of the `deepspeed` started by the supervisor."""
    (child,) = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize("how", ["stop file", "SIGTERM to a rank", "SIGTERM to the supervisor"])
def test_a_requested_stop_saves_and_the_same_command_resumes(
    how: str, whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    folder = tmp_path / "run"
    start = supervised if how == "SIGTERM to the supervisor" else on_two_ranks
    run = start(launch, shards_folder, folder)
    wait_for_step(folder, 30)
    moment = time.monotonic()
    if how == "stop file":
        (folder / "stop").touch()
    else:
        os.kill(run.process.pid if start is supervised else rank_of(folder, 1), signal.SIGTERM)
    saved = run.wait_for("saved ", moment)
    stopped = run.wait_for("stopped on request after step", moment)
    output = run.ended(75)
    tell(saved=saved, stopped=stopped, ended=time.monotonic() - moment)
    assert "supervise: restart" not in output
    on_two_ranks(launch, shards_folder, folder).ended(0)
    assert_nothing_was_lost(folder, whole)


def test_a_frozen_rank_is_named_and_its_run_restarted(
    whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    folder = tmp_path / "run"
    run = supervised(launch, shards_folder, folder, "--hang_timeout", str(HANG_TIMEOUT))
    wait_for_step(folder, 30)
    moment = time.monotonic()
    os.kill(rank_of(folder, 1), signal.SIGSTOP)
    detected = run.wait_for("not heard from", moment)
    restarted = run.wait_for("supervise: restart 1 of 1, from step-", moment)
    assert "supervise: rank 1 on " in run.ended(0)
    assert_nothing_was_lost(folder, whole)
    tell(detected=detected, restarted=restarted)


SPINNING = """
import signal
def spin(*signal):
    while True:
        pass
signal.signal(signal.SIGUSR2, spin)
"""
"""Code of `sitecustomize.py`, which Python runs at start-up: a rank spins once a file tells it to."""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_in_an_endless_loop_ends_the_job_in_time_and_its_line_is_shown(
    rank: int, whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPINNING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"])))
    folder = tmp_path / "run"
    run = supervised(launch, shards_folder, folder, "--hang_timeout", str(HANG_TIMEOUT))
    wait_for_step(folder, 30)
    moment = time.monotonic()
    os.kill(rank_of(folder, rank), signal.SIGUSR2)
    detected = run.wait_for(f"no progress for {HANG_TIMEOUT} s after", moment)
    restarted = run.wait_for("supervise: restart 1 of 1, from step-", moment)
    output = run.ended(0)
    (line,) = [line for line in output.splitlines() if line.startswith("supervise: rank ")]
    assert "sitecustomize.py line 4" in line and "distributed" in line, "where each rank was"
    assert_nothing_was_lost(folder, whole)
    tell(detected=detected, restarted=restarted)
    print(*[line for _, line in run.lines if "no progress" in line], sep="\n")


def test_a_checkpoint_that_is_not_finite_is_refused_by_name_on_every_rank(
    whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    """It contains a NaN with valid checksums, as another program might have written it."""
    folder = as_killed_after(40, whole, tmp_path / "run")
    path = checkpoint_of(folder, 40) / "weights.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    weights[name].view(-1)[0] = torch.nan
    save_file(weights, path)
    sign(path.parent)
    before = path.read_bytes()
    output = on_two_ranks(launch, shards_folder, folder).ended(2)
    assert f"step-00000040 holds NaN or infinity in {name}, expected numbers; move it away" in output
    assert path.read_bytes() == before and not checkpoint_of(folder, 60).exists()


def test_a_run_that_diverges_ends_at_that_step_and_so_does_its_restart(
    shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    folder = tmp_path / "run"
    run = supervised(launch, shards_folder, folder, also=("optim.lr=1e30", "optim.warmup_steps=1"))
    output = run.ended(1)
    (samples,) = folder.glob("nonfinite-step-*.json")
    step = json.loads(samples.read_text())["step"]
    assert step > 1, "it did update before"
    assert output.count(f"rank 0 on {os.uname().nodename} failed after") >= 1
    assert f"step {step}: the gradient is not finite" in output
    assert "supervise: gave up after 1 restart;" in output
    assert not (folder / "checkpoints").exists()


def test_a_loss_spike_is_reported_and_counted(
    whole_alone: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    """Caused by a checkpoint whose weights are multiplied by three."""
    folder = as_killed_after(80, whole_alone, tmp_path / "run")
    path = checkpoint_of(folder, 80) / "weights.safetensors"
    save_file({name: 3 * tensor for name, tensor in load_file(path).items()}, path)
    sign(path.parent)
    output = alone(launch, shards_folder, folder).ended(0)
    (warning,) = [line for line in output.splitlines() if "is a spike" in line and "step 81:" in line]
    assert warning.startswith("WARNING: step 81: loss ") and "the last 64 steps had" in warning
    spikes = [record["loss_spikes"] for record in read_metrics(folder, "train")]
    assert spikes[79] == 0 and spikes[80] == 1
    print(warning)


def test_a_slow_rank_is_named_in_the_log_lines(shards_folder: Path, tmp_path: Path, launch: Launch) -> None:
    """Rank 1 is suspended five sixths of the time, more than other work could hold rank 0 up."""
    folder = tmp_path / "run"
    run = on_two_ranks(launch, shards_folder, folder)
    wait_for_step(folder, 10)
    first = last = read_complete(folder)[-1]["step"]
    while last < first + 30:
        for number, seconds in ((signal.SIGSTOP, 0.5), (signal.SIGCONT, 0.1)):
            os.kill(rank_of(folder, 1), number)
            time.sleep(seconds)
        last = read_complete(folder)[-1]["step"]
    run.ended(0)
    held = [record for record in read_metrics(folder, "train") if first < record["step"] < last]
    assert sum(record["slowest_rank"] == 1 for record in held) > 0.6 * len(held)
    assert "slowest rank 1" in run.output


def test_fp16_ends_at_the_minimum_of_its_loss_scale_with_step_and_samples(
    shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    """Runs on a CPU that declares fp16; gradients multiplied by 2^40 do overflow."""
    values = json.loads((REPOSITORY / "ds_configs" / "zero1_fp16.json").read_text())
    values["fp16"] |= {"initial_scale_power": 40, "min_loss_scale": 2**38, "hysteresis": 1}
    (tmp_path / "deepspeed.json").write_text(json.dumps(values))
    folder = tmp_path / "run"
    options = (*run_arguments(shards_folder, folder)[1:], "--deepspeed_config", tmp_path / "deepspeed.json")
    run = Heard(launch(2, "bench/gpu/declared.py", *options))
    output = run.ended(1)
    assert "step 3: the gradient is not finite" in output and "loss scale 2.74878e+11 cannot fall further" in output
    assert (folder / "nonfinite-step-3.json").is_file()
