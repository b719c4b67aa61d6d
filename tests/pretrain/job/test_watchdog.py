"""Claims about ranks that die, hang or lose their launcher: the job ends in time and names the rank."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from pretrain.job.end_record import first_causes, read_records
from pretrain.job.meeting import BEAT
from pretrain.job.processes import World
from pretrain.job.watchdog import Watchdog
from tests.conftest import REPOSITORY, free_port
from tests.pretrain.job.watchdog_worker import BAD_STEP, HANG_TIMEOUT


def start(how: str, ranks: int, folder: Path, *prefix: str) -> list[subprocess.Popen[str]]:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            [*prefix, sys.executable, str(Path("tests/pretrain/job/watchdog_worker.py")), how, folder],
            cwd=REPOSITORY,
            env=os.environ | variables | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def wait_for_start(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdout is not None
        while "started" not in (line := process.stdout.readline()):
            assert line, "a rank did not start"


def ended(process: subprocess.Popen[str], within: float) -> str:
    """Output of a rank that must end by itself within this many seconds."""
    try:
        return process.communicate(timeout=within)[0]
    finally:
        process.kill()


@pytest.mark.parametrize(
    "how", ["is frozen", *(pytest.param(how, marks=pytest.mark.long) for how in ("hangs", "holds Python's lock"))]
)
def test_a_hanging_rank_ends_the_job_in_time_and_is_named(how: str, tmp_path: Path) -> None:
    processes = start(how, 2, tmp_path)
    wait_for_start(processes)
    said = ended(processes[0], within=6 * HANG_TIMEOUT)
    assert processes[0].returncode == 1
    assert "rank 1 on " in said and f"after step {BAD_STEP}" in said, said
    assert "all_reduce" in said  # the place where it was waiting itself
    record = read_records(tmp_path)[0]
    assert (record.exit_code, record.step) == (1, BAD_STEP) and "rank 1 on " in record.sentence, record
    if how == "is frozen":
        assert "last words" in said
        processes[1].kill()  # a frozen process cannot end by itself; launchers kill it
        assert [record.rank for record in first_causes(read_records(tmp_path))] == [1]
    else:
        ended(processes[1], within=6 * HANG_TIMEOUT)


@pytest.mark.parametrize(("how", "killed"), [("is killed", 1), ("is killed with the store", 0)])
def test_a_killed_rank_is_distinguished_from_one_that_lost_its_connection_to_it(
    how: str, killed: int, tmp_path: Path
) -> None:
    processes = start(how, 2, tmp_path)
    wait_for_start(processes)
    survivor = processes[1 - killed]
    assert processes[killed].wait(6 * HANG_TIMEOUT) == -signal.SIGKILL
    survivor.terminate()  # as its launcher does, before it has printed the reason
    said = ended(survivor, within=6 * HANG_TIMEOUT)
    assert survivor.returncode == 1
    records = read_records(tmp_path)
    assert f"lost the connection to {records[killed].name}; failed after step {BAD_STEP}: " in said
    log = (tmp_path / "logs" / f"rank-000{1 - killed}.log").read_text()
    assert "Traceback" not in said and "in main\n    dist.all_reduce" in log, "where it waited is only in its log"
    assert [record.reason for record in records] == (["lost", None] if killed else [None, "lost"])
    (cause,) = first_causes(records)
    assert (cause.rank, cause.sentence) == (killed, "exited without a message (probably killed)")


def test_an_error_on_one_rank_ends_the_others_with_its_message(tmp_path: Path) -> None:
    processes = start("raises", 2, tmp_path)
    wait_for_start(processes)
    said = ended(processes[0], within=6 * HANG_TIMEOUT)
    assert processes[0].returncode == 1
    assert "rank 1 on " in said and "OSError: no space left on device" in said
    stack = " is, after "
    assert stack not in said and stack in (tmp_path / "logs" / "rank-0000.log").read_text(), "only in its log"
    assert "Traceback" in ended(processes[1], within=6 * HANG_TIMEOUT)
    told, failed = read_records(tmp_path)
    assert (told.reason, failed.reason) == ("told", "error") and first_causes([told, failed]) == [failed]
    assert failed.sentence == f"failed after step {BAD_STEP}: OSError: no space left on device"


STRANGER = """
import json, sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
end = time.monotonic() + 4
while time.monotonic() < end:
    for word in (json.dumps(["\\x1b[31mbad usage", 2]), b"\\xff" * 500, "0" * 64 + "[1, 2]"):
        store.set("watchdog/attempt-0/failure", word)
        store.set("watchdog/attempt-0/1", word)
        time.sleep(0.1)
print(sorted(store.list_keys()))
"""
"""A stranger who knows the port, and learns every key from the store itself."""


def test_a_stranger_at_the_store_ends_no_job_and_ranks_still_learn_of_a_failure(tmp_path: Path) -> None:
    processes = start("raises", 2, tmp_path)
    wait_for_start(processes)
    port = dict(part.split("=", 1) for part in environment_of(processes[0]))["MASTER_PORT"]
    stranger = subprocess.run([sys.executable, "-c", STRANGER, port], capture_output=True, text=True, check=True)
    assert "watchdog/attempt-0/failure" in stranger.stdout, "it has reached the store"
    said = ended(processes[0], within=6 * HANG_TIMEOUT)
    assert processes[0].returncode == 1
    assert "WARNING: somebody else writes to this job's store at 127.0.0.1:" in said
    assert "OSError: no space left on device" in said, "a rank's failure, to whose key the stranger also wrote"
    assert "bad usage" not in said and "\x1b" not in said
    ended(processes[1], within=6 * HANG_TIMEOUT)


def environment_of(process: subprocess.Popen[str]) -> list[str]:
    return Path(f"/proc/{process.pid}/environ").read_text().split("\0")[:-1]


@pytest.mark.long
def test_a_job_restarted_by_torchrun_is_not_ended_by_the_previous_failure(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--max_restarts=1", f"--master_port={free_port()}"]
    job = subprocess.Popen(
        [sys.executable, *launcher, "tests/pretrain/job/watchdog_worker.py", "raises once", tmp_path],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = ended(job, within=120)
    assert job.returncode == 0, said
    assert "OSError: no space left on device" in said
    assert said.count("came as far in peace") == 2


@pytest.mark.parametrize(("how", "code"), [("stops", 75), ("never stops", 1)])
def test_a_rank_does_not_outlive_its_launcher(how: str, code: int, tmp_path: Path) -> None:
    script = f'"$@" & echo $! > {tmp_path}/rank; wait'
    (launcher,) = start(how, 1, tmp_path, "sh", "-c", script, "sh")
    wait_for_start([launcher])
    time.sleep(0.5)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    said, _ = launcher.communicate(timeout=6 * HANG_TIMEOUT)  # the output closes when the rank ends
    assert "its launcher has exited; saving and stopping" in said
    assert ("could not save and stop" in said) == (code == 1)
    assert not Path("/proc", (tmp_path / "rank").read_text().strip(), "exe").exists()


def test_neither_alarm_nor_thread_outlives_the_watch(tmp_path: Path) -> None:
    with Watchdog(World(0, 1, 0, torch.device("cpu")), HANG_TIMEOUT, tmp_path):
        time.sleep(2.5 * BEAT)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
