"""Claims about joining and leaving a job. Several ranks are tested in test_engine.py, under the launcher."""

import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.machine import cores
from pretrain.job.processes import listen, start_processes
from tests.conftest import free_port
from tests.warm import Warm

PROGRAM = """
import atexit, os, resource, torch
from pretrain.job.processes import leave, start_processes
def faults():  # of one step; the heap grows for up to eight steps, until every gap holds a whole tensor
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step = [torch.ones(40 * 2**20 // 4) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(sum([faults() for _ in range(40)][-2:]))
world = start_processes()
print(sum([faults() for _ in range(40)][-2:]))
assert (world.rank, world.world_size, world.is_first) == (0, 1, True)
assert world.share({"step": 3}) == {"step": 3}
print("threads", torch.get_num_threads())
atexit.register(os.abort)  # in place of a thread of the communication library
leave(75)
"""


@pytest.fixture(scope="module")
def alone() -> subprocess.CompletedProcess[str]:
    """A program in plain Python that joins and leaves."""
    kept = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE")}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=kept, capture_output=True, text=True, timeout=120)


def test_plain_python_is_a_job_of_one_with_every_core_and_exits_with_the_given_code(
    alone: subprocess.CompletedProcess[str],
) -> None:
    assert (alone.returncode, alone.stderr) == (75, "")
    assert alone.stdout.splitlines()[2:] == [f"threads {cores()}"]


FAILING = """
import atexit, os
from electra_sampler.foundation.command_line import run_script
from electra_sampler.foundation.config import ConfigError, StrictConfig
from pretrain.job.processes import start_processes
def main(options: StrictConfig) -> int:
    start_processes()
    atexit.register(os.abort)  # in place of a thread of the communication library
    raise {error}
run_script(main)
"""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("ConfigError('lr: wrong')", 2, "lr: wrong"),
        ("KeyboardInterrupt", 130, "interrupted"),
        ("ValueError", 1, "Trace"),
    ],
)
def test_a_process_of_a_job_that_ends_by_an_error_keeps_its_exit_code(error: str, code: int, said: str) -> None:
    program = [sys.executable, "-c", FAILING.format(error=error)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_task_that_sees_only_its_own_gpu_takes_it_whatever_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert start_processes().device == torch.device("cuda", 0) == taken[0]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other settings")
def test_memory_freed_by_a_step_is_reused_by_the_next_without_page_faults(
    alone: subprocess.CompletedProcess[str],
) -> None:
    before, kept = map(int, alone.stdout.splitlines()[:2])
    assert kept < 12_000 < 60_000 < before  # two times 120 MB are 61,440 pages of 4 kB


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, no threads are set")
def test_ranks_divide_the_cores_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("LOCAL_SIZE", "1000")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(3)
    start_processes()
    assert torch.get_num_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    start_processes()
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_joining_twice_has_no_further_effect() -> None:
    assert start_processes() == start_processes()


def reached(address: str, port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((address, port)) == 0


@pytest.mark.parametrize(("address", "everywhere"), [("127.0.0.1", False), ("192.0.2.1", True), ("localhost", True)])
def test_a_job_listens_only_at_its_own_address_if_that_is_on_this_machine(address: str, everywhere: bool) -> None:
    """192.0.2.1 belongs to nobody (RFC 5737), like an address translated on the way; localhost has two addresses."""
    with listen(address, free_port()) as listening:
        port = listening.getsockname()[1]
        assert reached("127.0.0.1", port)
        assert reached("127.0.0.2", port) == everywhere


RANK_0 = "from pretrain.job.processes import start_processes; start_processes()"
ONE_HOST = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_SIZE": "2"}


def test_ranks_on_one_host_meet_where_no_other_host_can_reach_them(tmp_path: Path) -> None:
    port, script = free_port(), tmp_path / "rank.py"
    script.write_text(RANK_0)
    rank = Warm(script, env=ONE_HOST | {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)})
    try:
        while not reached("127.0.0.1", port):
            assert rank.poll() is None
        assert not reached("127.0.0.2", port)
    finally:
        rank.kill()
        rank.wait()


IMPATIENT = "from electra_sampler.foundation import progress; progress.SILENCE = 0.5\n" + RANK_0
WAITS = {
    "0": "waiting for 1 of 2 ranks: rank 1; this shell of `srun --pty` is one of 2 tasks of its Slurm step, ",
    "1": "waiting for rank 0 at 127.0.0.1\n",
}


@pytest.mark.parametrize("rank", WAITS)
def test_a_rank_says_for_whom_it_waits_and_is_interrupted_at_once(rank: str, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(IMPATIENT)
    shell = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PTY_PORT": "40000", "MASTER_PORT": str(free_port())}
    process = Warm(tmp_path / "rank.py", env=ONE_HOST | shell | {"RANK": rank})
    assert process.stdout.readline().startswith(WAITS[rank])
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert "KeyboardInterrupt" in process.communicate(60)[0] and time.monotonic() - began < 5


@pytest.mark.parametrize("place", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_named_with_the_way_to_choose_another(place: str) -> None:
    with socket.create_server((place, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"MASTER_PORT: got {port}, .*already in use.*--master_port"):
            listen("127.0.0.1", port)
