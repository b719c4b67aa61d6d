"""What launchers do with signals, row by row as docs/operations.md has it; with ranks that only wait.

A failure here is news of DeepSpeed, pdsh or Slurm: the page, and what relies on the row, must follow.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.hosts import ADDRESSES, Slurm, TwoHosts
from tests.conftest import REPOSITORY
from tests.pretrain.conftest import free_port

RANK = str(REPOSITORY / "tests/cluster/rank.py")
SETTLED = 12.0
"""Seconds after which what still runs is taken to run on."""
NODE_LAUNCHER = "-u -m deepspeed.launcher.launch"


class Row(NamedTuple):
    """What a signal to one process of a launch does."""

    launch: str
    host: str
    target: str
    """Part of its command line."""
    signal: signal.Signals
    heard: int
    """Ranks that a signal reaches."""
    code: int | None
    """The launcher's, negative for the signal that ended it; `None`: it runs on."""
    left: int
    """Ranks that run on."""


TERM, INT, USR1, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL
ROWS = [
    *(Row("one host", "node1", "bin/deepspeed ", number, 0, -number, 2) for number in (TERM, INT, USR1, KILL)),
    *(Row("one host", "node1", NODE_LAUNCHER, number, 1, 1, 0) for number in (TERM, INT)),
    *(Row("one host", "node1", NODE_LAUNCHER, number, 0, 0, 2) for number in (USR1, KILL)),
    *(Row("one host", "node1", f"-u {RANK}", number, 1, 75, 0) for number in (TERM, INT, USR1)),
    Row("one host", "node1", f"-u {RANK}", KILL, 1, 247, 0),
    *(Row("pdsh", "node1", "bin/deepspeed ", number, 2, 1, 0) for number in (TERM, INT)),
    *(Row("pdsh", "node1", "bin/deepspeed ", number, 0, -number, 2) for number in (USR1, KILL)),
    *(Row("pdsh", "node1", "pdsh -S", number, 0, 0, 2) for number in (TERM, USR1, KILL)),
    *(Row("pdsh", "node2", NODE_LAUNCHER, number, 1, 75, 0) for number in (TERM, INT)),
    *(Row("pdsh", "node2", NODE_LAUNCHER, number, 0, None, 2) for number in (USR1, KILL)),
    *(Row("pdsh", "node2", f"-u {RANK}", number, 1, 75, 0) for number in (TERM, INT, USR1)),
    Row("pdsh", "node2", f"-u {RANK}", KILL, 0, None, 1),
    Row("srun", "node1", "srun --nodes", USR1, 2, 75, 0),
    Row("srun", "node1", "srun --nodes", TERM, 0, 137, 0),
    *(Row("srun", "node2", f"python {RANK}", number, 1, 75, 0) for number in (TERM, INT, USR1)),
    Row("srun", "node2", f"python {RANK}", KILL, 0, None, 1),
]


@pytest.fixture(autouse=True)
def interrupts_are_not_ignored() -> Iterator[None]:
    """As they are in what a shell starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.launch}: {row.signal.name} to {row.target[-30:].strip()}")
def test_a_signal_does_what_the_page_says(row: Row, two_hosts: TwoHosts, slurm: Slurm, tmp_path: Path) -> None:
    process = start(row.launch, two_hosts, slurm, tmp_path)
    try:
        first = min(processes(two_hosts, row.host, row.target))
        os.kill(first, row.signal)
        code = wait(process, SETTLED)
        time.sleep(2)
        heard = sum("SIG" in path.read_text() for path in tmp_path.glob("rank-*"))
        assert Row(*row[:4], heard, code, len(ranks(two_hosts))) == row
    finally:
        (tmp_path / "stop").touch()
        time.sleep(2)
        for pid in ranks(two_hosts) + [
            pid for text in ("bin/deepspeed ", "pdsh -S", "srun --nodes") for pid in processes(two_hosts, "node1", text)
        ]:
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)


def start(launch: str, hosts: TwoHosts, slurm: Slurm, folder: Path) -> subprocess.Popen[str]:
    deepspeed = ["deepspeed", f"--master_port={free_port()}"]
    command = {
        "one host": [*deepspeed, "--num_gpus=2"],
        "pdsh": [*deepspeed, "--hostfile", hosts.hostfile],
        "srun": ["srun", "--nodes=2", "--ntasks=2", "--kill-on-bad-exit=0", sys.executable],
    }[launch]
    process = hosts.start([*command, RANK, "--folder", folder], folder, **slurm.environment)
    deadline = time.monotonic() + 200
    while len(list(folder.glob("rank-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)
    return process


def wait(process: subprocess.Popen[str], seconds: float) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def processes(hosts: TwoHosts, host: str, text: str) -> list[int]:
    """Those with this text, but for the shells that sshd runs them in."""
    found = hosts.processes(host, text)
    return [pid for pid in found if Path(f"/proc/{pid}/comm").read_text().strip() not in ("bash", "sh")]


def ranks(hosts: TwoHosts) -> list[int]:
    commands = (f"-u {RANK} --local_rank", f"python {RANK}")
    found = {pid for host in ADDRESSES for text in commands for pid in processes(hosts, host, text)}
    return sorted(pid for pid in found if Path(f"/proc/{pid}/comm").read_text().startswith("python"))
