"""Claims about two commands on one run folder, and about a command whose supervisor is killed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from electra_sampler.foundation.locks import Lock, holder
from pretrain.engine.checkpoint import newest_valid
from tests.pretrain.whole_runs import Launch, finished, losses, run_arguments, wait_for_step
from tests.reliability.runs import assert_nothing_was_lost, supervised, under_way

SHORT = ("optim.steps=8", "evaluate_every=8")


@pytest.fixture(scope="module")
def whole_short(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Path:
    """Folder of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("two") / "whole"
    finished(launch(0, *run_arguments(shards_folder, folder, *SHORT)))
    return folder


def errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if "error: " in line]


@contextmanager
def held_still(folder: Path) -> Iterator[int]:
    """Suspends the process that holds the folder's lock once it trains; yields its PID."""
    wait_for_step(folder, 1)
    pid = json.loads((folder / "lock").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)


def test_of_two_simultaneous_commands_one_trains_and_the_other_is_refused(
    whole_short: Path, shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    command = run_arguments(shards_folder, run_folder, *SHORT)
    processes = {process.pid: process for process in (launch(0, *command) for _ in "12")}
    with held_still(run_folder) as pid:
        trained = processes.pop(pid)
        (refused,) = processes.values()
        (line,) = finished(refused, 2).splitlines()
    finished(trained)
    assert line.startswith(f"run.py: error: output: {run_folder} is in use by process {pid} on ")
    assert "pretrain/run.py" in line and f"`touch {run_folder}/stop`" in line
    assert losses(run_folder) == losses(whole_short)
    assert holder(run_folder / "lock") is None


def contents(folder: Path) -> dict[Path, bytes]:
    """Content of every file except TensorBoard's, which a background thread may still write."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "tfevents" not in path.name}


def test_a_later_command_is_refused_within_seconds_and_changes_nothing(
    whole_short: Path, shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    command = run_arguments(shards_folder, run_folder, *SHORT)
    first = launch(0, *command)
    with held_still(run_folder):
        before = contents(run_folder)
        started = time.monotonic()
        later = launch(0, "pretrain/supervise.py", "--", "python", *command)
        assert len(errors(output := finished(later, code=2))) == len(output.splitlines()) == 1
        assert time.monotonic() - started < 60
        assert contents(run_folder) == before
    finished(first)
    assert losses(run_folder) == losses(whole_short)


@pytest.mark.long
def test_if_the_first_rank_is_refused_all_ranks_end_with_its_one_line(
    shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    """The ranks have already joined: another command takes the folder after their check."""
    with Lock(run_folder / "lock"):
        output = finished(
            launch(2, "tests/reliability/refused_worker.py", *run_arguments(shards_folder, run_folder)[1:]), 2
        )
    assert len(errors(output)) == 1 and f"is in use by process {os.getpid()} on " in output
    assert "Traceback" not in output
    assert [path.name for path in run_folder.iterdir()] == ["lock"]


@pytest.mark.long
def test_a_run_whose_folder_was_taken_by_another_process_writes_no_checkpoint_there(
    shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    """Simulates a lost file server: the lock is lost by closing its file a second time."""
    arguments = run_arguments(
        shards_folder, run_folder, "optim.steps=400", "checkpoint_every=400", "evaluate_every=400"
    )
    process = launch(0, "tests/reliability/losing_worker.py", *arguments[1:])
    wait_for_step(run_folder, 1)
    with Lock(run_folder / "lock", patience=60):
        assert f"Lost: the lock on {run_folder}/lock was lost" in finished(process, code=1)
    assert not (run_folder / "checkpoints").exists()


@pytest.mark.long
def test_a_run_whose_supervisor_is_killed_saves_and_ends_and_the_same_command_resumes(
    whole: Path, shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    run, killed = under_way(supervised, launch, shards_folder, run_folder)
    run.process.kill()
    while holder(run_folder / "lock"):
        assert time.monotonic() < killed + 60, "it is still training"
        time.sleep(0.05)
    saved = newest_valid(run_folder / "checkpoints")
    assert saved and saved.step % 20, "not where a checkpoint was due"
    assert "stopped on request after step" in (run_folder / "logs" / "rank-0000.log").read_text()
    supervised(launch, shards_folder, run_folder).ended(0)
    assert_nothing_was_lost(run_folder, whole)
