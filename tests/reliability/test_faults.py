"""The faults of ranks, numbers and files in docs/evidence/faults.md, each caused in a whole run.

`pytest -m long -rP tests/reliability` prints the seconds for the table.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain.engine.checkpoint import newest_valid
from pretrain.runs.log import read_metrics
from tests.pretrain.conftest import fill, mounted
from tests.pretrain.whole_runs import Launch, rank_of, read_complete, wait_for_step
from tests.reliability.runs import (
    EVERY,
    STEPS,
    alone,
    assert_nothing_was_lost,
    on_two_ranks,
    supervised,
    tell,
    under_way,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
HANG_TIMEOUT = 10
"""Seconds: the shortest timeout that a start on a busy machine does not exceed."""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_and_its_run_restarted(
    rank: int, whole: Path, shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    run, moment = under_way(supervised, launch, shards_folder, run_folder)
    os.kill(rank_of(run_folder, rank), signal.SIGKILL)
    named = run.wait_for(f"supervise: rank {rank} on ", moment)
    restarted = run.wait_for("supervise: restart 1 of 1, from step-00000020", moment)
    detected = run.wait_for("supervise: the command ended", moment)
    output = run.ended(0)
    named_once = f"supervise: rank {rank} on {os.uname().nodename}: exited without a message (probably killed)"
    assert output.count("supervise: rank ") == 1
    assert f"{named_once}; its output is in {run_folder}/logs/rank-000{rank}.log\n" in output
    assert "lost the connection to rank" in output and "Traceback" not in output, "which is in the survivor's log"
    assert_nothing_was_lost(run_folder, whole)
    tell(detected=detected, named=named, restarted=restarted)


def test_ranks_whose_launcher_is_killed_save_and_are_restarted(
    whole: Path, shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    run, moment = under_way(supervised, launch, shards_folder, run_folder)
    (launcher,) = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    os.kill(int(launcher), signal.SIGKILL)
    detected = run.wait_for("its launcher has exited; saving and stopping", moment)
    saved = run.wait_for("saved ", moment)
    restarted = run.wait_for("supervise: restart 1 of 1, from step-", moment)
    assert "supervise: rank" not in run.ended(0), "no rank is to blame"
    assert_nothing_was_lost(run_folder, whole)
    tell(detected=detected, saved=saved, restarted=restarted)


@pytest.mark.parametrize("how", ["stop file", "SIGTERM to a rank", "SIGTERM to the supervisor"])
def test_a_requested_stop_saves_and_the_same_command_resumes(
    how: str, whole: Path, shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    start = supervised if how == "SIGTERM to the supervisor" else on_two_ranks
    run, moment = under_way(start, launch, shards_folder, run_folder)
    if how == "stop file":
        (run_folder / "stop").touch()
    else:
        os.kill(run.process.pid if start is supervised else rank_of(run_folder, 1), signal.SIGTERM)
    saved = run.wait_for("saved ", moment)
    stopped = run.wait_for("stopped on request after step", moment)
    output = run.ended(75)
    tell(saved=saved, stopped=stopped, ended=time.monotonic() - moment)
    assert "supervise: restart" not in output
    on_two_ranks(launch, shards_folder, run_folder).ended(0)
    assert_nothing_was_lost(run_folder, whole)


def test_a_frozen_rank_is_named_and_its_run_restarted(
    whole: Path, shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    run, moment = under_way(supervised, launch, shards_folder, run_folder, "--hang_timeout", str(HANG_TIMEOUT))
    os.kill(rank_of(run_folder, 1), signal.SIGSTOP)
    detected = run.wait_for("not heard from", moment)
    restarted = run.wait_for("supervise: restart 1 of 1, from step-", moment)
    assert "supervise: rank 1 on " in run.ended(0)
    assert_nothing_was_lost(run_folder, whole)
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
    rank: int,
    whole: Path,
    shards_folder: Path,
    tmp_path: Path,
    run_folder: Path,
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPINNING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"])))
    run, moment = under_way(supervised, launch, shards_folder, run_folder, "--hang_timeout", str(HANG_TIMEOUT))
    os.kill(rank_of(run_folder, rank), signal.SIGUSR2)
    detected = run.wait_for(f"no progress for {HANG_TIMEOUT} s after", moment)
    restarted = run.wait_for("supervise: restart 1 of 1, from step-", moment)
    output = run.ended(0)
    (line,) = [line for line in output.splitlines() if line.startswith("supervise: rank ")]
    assert "sitecustomize.py line 4" in line and "distributed" in line, "where each rank was"
    assert_nothing_was_lost(run_folder, whole)
    tell(detected=detected, restarted=restarted)
    print(*[line for _, line in run.lines if "no progress" in line], sep="\n")


def test_a_slow_rank_is_named_in_the_log_lines(shards_folder: Path, run_folder: Path, launch: Launch) -> None:
    """Rank 1 is suspended for half a second at a time. The steps between are quick, and either rank may be slower."""
    run = on_two_ranks(launch, shards_folder, run_folder)
    wait_for_step(run_folder, 10)
    first = last = read_complete(run_folder)[-1]["step"]
    while last < first + 30:
        for number, seconds in ((signal.SIGSTOP, 0.5), (signal.SIGCONT, 0.1)):
            os.kill(rank_of(run_folder, 1), number)
            time.sleep(seconds)
        last = read_complete(run_folder)[-1]["step"]
    run.ended(0)
    steps = [record for record in read_metrics(run_folder, "train") if first < record["step"] < last]
    held = [record["slowest_rank"] for record in steps if record["slowest_rank_seconds"] > 0.4]
    assert len(held) >= 5 and held.count(1) > 0.8 * len(held)
    assert "slowest rank 1" in run.output


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real mounted file system with room for three checkpoints and a run's other files."""
    with mounted(tmp_path / "disk", "27m") as place:
        yield place


FEW = ("keep_checkpoints=2",)


def test_a_run_continues_on_a_full_disk_and_catches_up(
    disk: Path, whole_alone: Path, shards_folder: Path, launch: Launch
) -> None:
    folder = disk / "run"
    run = alone(launch, shards_folder, folder, also=FEW)
    wait_for_step(folder, 25)
    os.kill(rank_of(folder, 0), signal.SIGSTOP)  # on a busy machine, it would end before its disk is full
    filler = fill(disk)
    os.kill(rank_of(folder, 0), signal.SIGCONT)
    moment = time.monotonic()
    records = run.wait_for("metrics.jsonl: No space left on device; training continues", moment)
    missed = run.wait_for("no checkpoint could be written", moment)
    assert newest_valid(folder / "checkpoints", say=pytest.fail) is not None
    filler.unlink()
    run.ended(0)
    assert_nothing_was_lost(folder, whole_alone)
    tell(records=records, checkpoint=missed)


def test_a_disk_that_stays_full_ends_the_run_with_its_last_checkpoint_intact(
    disk: Path, whole_alone: Path, shards_folder: Path, launch: Launch
) -> None:
    folder = disk / "run"
    run = alone(launch, shards_folder, folder, also=FEW)
    wait_for_step(folder, 25)
    filler = fill(disk)
    output = run.ended(1)
    assert f"step {STEPS}: no checkpoint could be written in {folder}/checkpoints" in output
    found = newest_valid(folder / "checkpoints", say=pytest.fail)
    assert found is not None and found.step >= EVERY
    filler.unlink()
    alone(launch, shards_folder, folder, also=FEW).ended(0)
    assert_nothing_was_lost(folder, whole_alone)


def test_a_shard_truncated_during_a_run_ends_it_and_the_restored_shard_resumes_it(
    whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    """Reading beyond the end of a mapped file kills the process; the restart finds the shard too short."""
    shards, folder = shutil.copytree(shards_folder, tmp_path / "shards"), tmp_path / "run"
    run, moment = under_way(supervised, launch, shards, folder)
    for path in shards.glob("shard-*.bin"):
        os.truncate(path, 0)
    named = run.wait_for("supervise: rank ", moment)
    output = run.ended(2)
    assert "is damaged: shard-0000" in output
    logs = "".join(path.read_text() for path in (folder / "logs").glob("rank-*.log"))
    assert "Fatal Python error: Bus error" in logs
    tell(named=named)
    shutil.copytree(shards_folder, shards, dirs_exist_ok=True)
    on_two_ranks(launch, shards, folder).ended(0)
    assert_nothing_was_lost(folder, whole)
