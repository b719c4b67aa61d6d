"""Claims about ranks that die, hang or lose their launcher: the job ends in time and names the rank."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from pretrain.job.processes import World
from pretrain.job.rank_log import first_cause, read_ends
from pretrain.job.watchdog import BEAT, Watchdog
from tests.conftest import REPOSITORY, free_port
from tests.pretrain.job.watchdog_worker import BAD_STEP, HANG_TIMEOUT
from tests.warm import Warm, two_ranks

WORKER = "tests/pretrain/job/watchdog_worker.py"


def wait_for_start(processes: Sequence[Warm | subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdout is not None
        while "started" not in (line := process.stdout.readline()):
            assert line, "a rank did not start"


def ended(process: Warm | subprocess.Popen[str], within: float) -> str:
    """Output of a rank that must end by itself within this many seconds."""
    try:
        return process.communicate(timeout=within)[0]
    finally:
        process.kill()


def hangs(how: str, folder: Path) -> None:
    processes = two_ranks(WORKER, how, folder)
    wait_for_start(processes)
    try:
        said = ended(processes[0], within=6 * HANG_TIMEOUT)
    finally:
        if how == "is frozen":
            processes[1].kill()  # a frozen process cannot end by itself; launchers kill it
    assert processes[0].returncode == 1
    assert "rank 1 on " in said and f"after step {BAD_STEP}" in said, said
    assert "all_reduce" in said  # the place where it was waiting itself
    record = read_ends(folder)[0]
    assert (record.exit_code, record.step) == (1, BAD_STEP) and "rank 1 on " in record.sentence, record
    if how == "is frozen":
        cause = first_cause(read_ends(folder))
        assert cause and cause.rank == 1
    else:
        ended(processes[1], within=6 * HANG_TIMEOUT)


def is_killed(how: str, killed: int, folder: Path) -> None:
    processes = two_ranks(WORKER, how, folder)
    wait_for_start(processes)
    survivor = processes[1 - killed]
    assert processes[killed].wait(6 * HANG_TIMEOUT) == -signal.SIGKILL
    survivor.terminate()  # as its launcher does, before it has printed the reason
    said = ended(survivor, within=6 * HANG_TIMEOUT)
    assert survivor.returncode == 1
    records = read_ends(folder)
    assert f"lost the connection to {records[killed].name} (after " in said
    assert f"; failed after step {BAD_STEP}: " in said
    log = (folder / "logs" / f"rank-000{1 - killed}.log").read_text()
    assert "Traceback" not in said and "in main\n    dist.all_reduce" in log, "where it waited is only in its log"
    assert [record.reason for record in records] == (["lost", None] if killed else [None, "lost"])
    cause = first_cause(records)
    assert cause and (cause.rank, cause.sentence) == (killed, "exited without a message (probably killed)")


def raises(folder: Path) -> None:
    processes = two_ranks(WORKER, "raises", folder)
    wait_for_start(processes)
    said = ended(processes[0], within=6 * HANG_TIMEOUT)
    assert processes[0].returncode == 1
    # Which of the two times, equal here, is over first is open; in a run a minute of silence comes before a hang.
    assert ("not heard from for 5 s: rank 1 on " in said or "elsewhere: rank 1 on " in said) and "(after step " in said
    assert "Traceback" in ended(processes[1], within=6 * HANG_TIMEOUT)
    waited, failed = read_ends(folder)
    assert waited.reason in ("lost", "hang") and failed.reason == "error" and first_cause([waited, failed]) == failed
    assert failed.sentence == f"failed after step {BAD_STEP}: OSError: no space left on device"


SCENARIOS: dict[str, Callable[[Path], None]] = {
    "a hanging rank ends the job in time and is named": partial(hangs, "is frozen"),
    "a killed rank is distinguished from one that lost its connection to it": partial(is_killed, "is killed", 1),
    "so it is if the store was in it": partial(is_killed, "is killed with the store", 0),
    "an error on one rank ends the others, which name it": raises,
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """The scenarios, played at once: their jobs mostly wait."""
    folders = {name: tmp_path_factory.mktemp("job") for name in SCENARIOS}
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {name: pool.submit(play, folders[name]) for name, play in SCENARIOS.items()}


@pytest.mark.parametrize("claim", SCENARIOS)
def test_a_rank_that_fails_ends_the_job(claim: str, played: dict[str, Future[None]]) -> None:
    played[claim].result()


@pytest.mark.long
@pytest.mark.parametrize("how", ["hangs", "holds Python's lock"])
def test_a_rank_that_hangs_while_it_runs_ends_the_job_too(how: str, tmp_path: Path) -> None:
    hangs(how, tmp_path)


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


LAUNCHER = """
import os, runpy, sys
if rank := os.fork():
    open(f"{sys.argv[-1]}/rank", "w").write(str(rank))
    os.waitpid(rank, 0)
else:
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("how", "code"), [("stops", 75), ("never stops", 1)])
def test_a_rank_does_not_outlive_its_launcher(how: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "1", "RANK": "0"}
    launcher = Warm(tmp_path / "launcher.py", REPOSITORY / WORKER, how, tmp_path, env=job)
    wait_for_start([launcher])
    time.sleep(0.5)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    said, _ = launcher.communicate(timeout=6 * HANG_TIMEOUT)  # the output closes when the rank ends
    assert "its launcher has exited; saving and stopping" in said
    assert ("could not save and stop" in said) == (code == 1)
    assert not Path("/proc", (tmp_path / "rank").read_text().strip(), "exe").exists()


def test_neither_alarm_nor_thread_outlives_the_watch(tmp_path: Path) -> None:
    with Watchdog(World(0, 1, torch.device("cpu")), HANG_TIMEOUT, tmp_path):
        time.sleep(2.5 * BEAT)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
