"""Claims about what a dry run finds on the hosts of a hostfile."""

from pathlib import Path

import pytest

from tests.cluster.hosts import TwoHosts
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("hostfile", "problem"),
    [
        ("node1 slots=1\nnode2 slots=1\n", None),
        ("node1 slots=1\nnode3 slots=1\n", "node3 cannot be reached: ssh: Could not resolve hostname node3"),
        ("node1 slots=512\n", "node1 slots=512, but it has"),
        ("node1 slots=1\nnode1 slots=1\n", "node1 stands 2 times"),
        ("node1 slot=1\n", "line 1: got 'node1 slot=1'"),
        (None, "No such file or directory"),
    ],
    ids=["right", "unknown host", "wrong slots", "duplicate", "typo", "missing file"],
)
def test_a_dry_run_says_in_one_line_what_is_wrong_with_a_hostfile(
    hostfile: str | None, problem: str | None, two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path
) -> None:
    if hostfile is not None:
        (tmp_path / "hosts").write_text(hostfile)
    options = ["--preset", "small", "--set", "batch_size=512", "--data", shards_folder, "--hostfile", "hosts"]
    process = two_hosts.start(["python", REPOSITORY / "pretrain/run.py", "--dry_run", *options], tmp_path)
    output, _ = process.communicate(timeout=200)
    errors = [line for line in output.splitlines() if line.startswith("run.py: error: ")]
    if problem is None:
        assert process.returncode == 0, output
        assert "no problem was found" in output and "ServerAliveInterval" in output
    else:
        assert process.returncode == 2, output
        assert len(errors) == 1 and problem in errors[0]
    assert not (tmp_path / "runs").exists()
