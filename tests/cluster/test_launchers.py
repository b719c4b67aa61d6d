"""Reactions of launchers to signals and bad hostfiles, row by row as in docs/evidence/faults.md (ranks only wait).

A failure here means that DeepSpeed, pdsh or Slurm has changed: update the page and all code that relies on the row.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.runs import deepspeed, wait_for
from tests.cluster.two_hosts import ADDRESSES, Slurm, TwoHosts
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs/evidence/faults.md"
RANK = str(REPOSITORY / "tests/cluster/rank.py")
SETTLED = 12.0
"""Seconds after which a process that still runs is assumed to keep running."""
PATIENCE = 60.0
"""Seconds to wait for an expected end on a shared machine."""


class Row(NamedTuple):
    """Effect of a signal on one process of a launch."""

    launch: str
    target: str
    """The page's name for the process."""
    signal: signal.Signals
    heard: int
    """Number of ranks that receive a signal."""
    code: int | None
    """The launcher's exit code, negative for a signal; None if it keeps running."""
    left: int
    """Number of ranks that keep running."""


ONE_HOST, PDSH, SRUN = "`deepspeed`, one host", "`deepspeed`, pdsh, two hosts", "`srun`"
GROUP = "all started here (Ctrl-C)"
COMMAND_LINES = {
    "`deepspeed`": "bin/deepspeed ",
    "node launcher": "-u -m deepspeed.launcher.launch",
    "a node launcher": "-u -m deepspeed.launcher.launch",
    "pdsh": "pdsh -S",
    "`srun`": "srun --nodes",
    "a rank": f"{RANK} ",
}
"""Part of each target's command line."""
TERM, INT, USR1, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL
ROWS = [
    *(Row(ONE_HOST, "`deepspeed`", number, 0, -number, 2) for number in (TERM, INT, USR1, KILL)),
    Row(ONE_HOST, GROUP, INT, 2, -INT, 0),
    *(Row(ONE_HOST, "node launcher", number, 1, 1, 0) for number in (TERM, INT)),
    *(Row(ONE_HOST, "node launcher", number, 0, 0, 2) for number in (USR1, KILL)),
    *(Row(ONE_HOST, "a rank", number, 1, 75, 0) for number in (TERM, INT, USR1)),
    Row(ONE_HOST, "a rank", KILL, 1, 247, 0),
    *(Row(PDSH, "`deepspeed`", number, 2, 1, 0) for number in (TERM, INT)),
    *(Row(PDSH, "`deepspeed`", number, 0, -number, 2) for number in (USR1, KILL)),
    Row(PDSH, GROUP, INT, 2, 1, 0),
    *(Row(PDSH, "pdsh", number, 0, 0, 2) for number in (TERM, USR1, KILL)),
    Row(PDSH, "pdsh", INT, 0, None, 2),
    *(Row(PDSH, "a node launcher", number, 1, 75, 0) for number in (TERM, INT)),
    *(Row(PDSH, "a node launcher", number, 0, None, 2) for number in (USR1, KILL)),
    *(Row(PDSH, "a rank", number, 1, 75, 0) for number in (TERM, INT, USR1)),
    Row(PDSH, "a rank", KILL, 0, None, 1),
    Row(SRUN, "`srun`", USR1, 2, 75, 0),
    Row(SRUN, "`srun`", TERM, 0, 137, 0),
    Row(SRUN, "`srun`", KILL, 0, -KILL, 0),
    *(Row(SRUN, target, INT, 0, None, 2) for target in ("`srun`", GROUP)),
    *(Row(SRUN, "a rank", number, 1, 75, 0) for number in (TERM, INT, USR1)),
    Row(SRUN, "a rank", KILL, 0, None, 1),
]


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.launch}: {row.signal.name} to {row.target}")
def test_a_signal_has_the_documented_effect(row: Row, two_hosts: TwoHosts, slurm: Slurm, tmp_path: Path) -> None:
    process = start(row.launch, two_hosts, slurm, tmp_path)
    try:
        for pid in targets(row, two_hosts):
            os.kill(pid, row.signal)
        code = wait(process, SETTLED if row.code is None else PATIENCE)
        time.sleep(2)
        heard = sum("SIG" in path.read_text() for path in tmp_path.glob("rank-*"))
        assert row._replace(heard=heard, code=code, left=len(ranks(two_hosts))) == row
    finally:
        (tmp_path / "stop").touch()
        time.sleep(2)
        for pid in ranks(two_hosts) + [
            pid for name in ("`deepspeed`", "pdsh", "`srun`") for pid in processes(two_hosts, "node1", name)
        ]:
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)


def start(launch: str, hosts: TwoHosts, slurm: Slurm, folder: Path) -> subprocess.Popen[str]:
    commands: dict[str, list[object]] = {
        ONE_HOST: deepspeed("--num_gpus=2"),
        PDSH: deepspeed("--hostfile", hosts.hostfile),
        SRUN: ["srun", "--nodes=2", "--ntasks=2", "--kill-on-bad-exit=0", sys.executable],
    }
    process = hosts.start([*commands[launch], RANK, "--folder", folder], folder, **slurm.environment)
    wait_for(lambda: len(list(folder.glob("rank-*"))) == 2)
    time.sleep(1)
    return process


def targets(row: Row, hosts: TwoHosts) -> list[int]:
    """Processes that receive the row's signal; in a launch on two hosts, the second host's."""
    if row.target != GROUP:
        there = "node2" if row.launch != ONE_HOST and row.target.startswith("a ") else "node1"
        return [min(processes(hosts, there, row.target))]
    group = os.getpgid(min(processes(hosts, "node1", "`srun`" if row.launch == SRUN else "`deepspeed`")))
    return [pid for pid in hosts.processes("node1", "") if os.getpgid(pid) == group]


def wait(process: subprocess.Popen[str], seconds: float) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def processes(hosts: TwoHosts, host: str, target: str) -> list[int]:
    """Processes with this name on the page, without the shells in which sshd starts them."""
    found = {
        pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        for pid in hosts.processes(host, COMMAND_LINES[target])
    }
    if target == "a rank":  # its launchers' command lines contain its own
        return [pid for pid, line in found.items() if re.match(rf"\S*python\S* (-u )?{RANK} ", line)]
    return [pid for pid, line in found.items() if not re.match(r"\S*(ba)?sh -c", line)]


def ranks(hosts: TwoHosts) -> list[int]:
    return [pid for host in ADDRESSES for pid in processes(hosts, host, "a rank")]


class Launch(NamedTuple):
    """Reaction of DeepSpeed to a hostfile."""

    started: list[str]
    """Hosts of the ranks it starts."""
    code: int
    said: str = ""
    """Part of its output."""


LEFT = 75
"""Exit code of the ranks."""
HOSTFILES = {
    "missing": (None, Launch(["node1"], LEFT, "Unable to find hostfile")),
    "two hosts in one line": ("node1 slots=1 node2 slots=1\n", Launch(["node1"], LEFT)),
    "`slots=1x`": ("node1 slots=1x\n", Launch(["node1"], LEFT)),
    "`slots=0`": ("node1 slots=0\n", Launch([], 0)),
    "`slots=0` of one host": ("node1 slots=1\nnode2 slots=0\n", Launch(["node1"], LEFT)),
    "more slots than cores": ("node1 slots=3\n", Launch(["node1"] * 3, LEFT)),
    "unknown host, the first": ("node3 slots=1\nnode1 slots=1\n", Launch([], 1, "node3 was not reachable via ssh")),
    "unknown host, another": ("node1 slots=1\nnode3 slots=1\n", Launch(["node1"], 255, "Could not resolve hostname")),
    "a host twice": ("node1 slots=1\nnode1 slots=1\n", Launch([], 1, "ValueError: Hostfile contains multiple")),
    "`slot=1`": ("node1 slot=1\n", Launch([], 1, "ValueError: Hostfile contains a bad entry")),
    "no host": ("# none\n", Launch([], 1, "ValueError: Hostfile is empty")),
}


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTFILES)
def test_deepspeed_handles_a_bad_hostfile_as_documented(name: str, two_hosts: TwoHosts, tmp_path: Path) -> None:
    text, expected = HOSTFILES[name]
    if text is not None:
        (tmp_path / "hosts").write_text(text)
    (tmp_path / "stop").touch()  # the ranks start and leave
    process = two_hosts.start([*deepspeed("--hostfile", "hosts"), RANK, "--folder", tmp_path], tmp_path)
    said, _ = process.communicate(timeout=100)
    started = [path.read_text().split()[2] for path in tmp_path.glob("rank-*")]
    assert Launch(started, process.returncode, expected.said if expected.said in said else said) == expected


HEARD = {
    "none": 0,
    "none: killed": 0,
    "that one": 1,
    "the others, by TERM": 1,
    "that host's, by TERM": 1,
    "by TERM, one after the other": 1,
    "all": 2,
    "all, by TERM": 2,
    "all, by USR1": 2,
}
"""Number of ranks that receive a signal, of two that then leave together."""


def test_the_page_lists_exactly_the_tested_signals() -> None:
    assert set(rows_of_the_page()) == {(*row[:4], as_a_shell_says(row.code), row.left) for row in ROWS}


def test_the_page_lists_exactly_the_tested_hostfiles() -> None:
    codes = {name: "the ranks'" if launch.code == LEFT else str(launch.code) for name, (_, launch) in HOSTFILES.items()}
    assert {name: code.strip("*") for name, _, code in lines_of_tables("hostfile")} == codes


def rows_of_the_page() -> Iterator[tuple[object, ...]]:
    """Rows of the page's table of signals, one per signal."""
    launch = ""
    for first, target, signals, heard, codes, left, _ in lines_of_tables("launch"):
        launch, names, several = first or launch, signals.split(", "), codes.strip("*").split(", ")
        for name, code in zip(names, several * len(names) if len(several) == 1 else several, strict=True):
            remaining = {"none": 0, "others": 1, "all": 2}[left]
            yield launch, target, signal.Signals[f"SIG{name}"], HEARD[heard], code, remaining


def lines_of_tables(heading: str) -> Iterator[list[str]]:
    """Cells of each row of the page's table whose first column has this heading."""
    _, _, table = PAGE.read_text().partition(f"\n| {heading} |")
    for line in table.split("\n\n")[0].splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def as_a_shell_says(code: int | None) -> str:
    return "runs on" if code is None else str(code if code >= 0 else 128 - code)


def test_the_large_tasks_of_fine_tuning_have_several_array_elements_that_share_a_folder(tmp_path: Path) -> None:
    """MNLI and SQuAD 2.0 with the paper's grid are days of one GPU; runs of one folder are shared by locks."""
    script = REPOSITORY / "cluster/finetune.sbatch"
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    last = int(re.findall(r"^#SBATCH --array=0-(\d+)$", script.read_text(), re.M)[0])
    elements: dict[str, list[int]] = {}
    for element in range(last + 1):
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": str(element)}
        command = ["bash", str(script), "exported/base", "--grid", "paper"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        elements.setdefault(done.stdout.split("--output ")[1].split()[0], []).append(element)
    assert len(elements) == 10
    shared = {folder.rpartition("/")[2] for folder, found in elements.items() if len(found) > 1}
    assert shared == {"QQP", "MNLI", "squad-2.0", "squad-1.1"}
    of_squad = sorted(element for folder, found in elements.items() if "squad" in folder for element in found)
    assert of_squad == [8, 9, *range(14, 18)], "as the script says"
