"""Claims about the two simulated hosts of the cluster tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cluster.two_hosts import Slurm, TwoHosts
from tests.conftest import REPOSITORY


def test_pdsh_reaches_both_hosts_and_each_has_its_own_name_and_address(two_hosts: TwoHosts, tmp_path: Path) -> None:
    command = ["pdsh", "-S", "-w", "node1,node2", "hostname; hostname -I"]
    lines = two_hosts.run(command, tmp_path, PDSH_RCMD_TYPE="ssh").split("\n")
    assert {line.strip() for line in lines if line} == {
        "node1: node1",
        "node1: 10.77.0.11",
        "node2: node2",
        "node2: 10.77.0.12",
    }


def test_a_disconnected_host_is_unreachable_until_it_is_reconnected(two_hosts: TwoHosts, tmp_path: Path) -> None:
    reach = ["ssh", "-o", "ConnectTimeout=2", "node2", "true"]
    two_hosts.cut("node2")
    try:
        process = two_hosts.start(reach, tmp_path)
        process.communicate(timeout=30)
    finally:
        two_hosts.mend("node2")
    assert process.returncode == 255
    two_hosts.run(reach, tmp_path)


def test_slurm_runs_a_job_on_both_hosts(slurm: Slurm) -> None:
    assert sorted(slurm.run("srun", "--nodes=2", "hostname").split()) == ["node1", "node2"]


def test_closing_hosts_ends_their_processes(tmp_path: Path) -> None:
    hosts = TwoHosts(tmp_path)
    process = hosts.start(["sleep", "600"], tmp_path, "node2")
    hosts.close()
    assert process.wait(timeout=10) != 0


def test_without_the_programs_their_tests_are_skipped_and_one_line_names_the_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/tests"]
    done = subprocess.run(
        [*command, __file__, "-k", "not without_the_programs"],
        cwd=REPOSITORY,
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("skipped ")]
    assert re.fullmatch(r"skipped +4  needs [\w -]+", said)
