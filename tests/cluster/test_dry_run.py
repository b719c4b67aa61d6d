"""Claims about the problems that a dry run finds on the hosts of a hostfile."""

from pathlib import Path

import pytest

from tests.cluster.two_hosts import TwoHosts
from tests.conftest import REPOSITORY

HOSTFILES = {
    "right": ("node1 slots=1\nnode2 slots=1\n", "zero1_fp32", None),
    "fp16 without GPUs": ("node1 slots=1\n", "zero1_fp16", "fp16.enabled: true without a GPU"),
    "unknown host": ("node1 slots=1\nnode3 slots=1\n", "zero1_fp32", "node3 cannot be reached: ssh: Could not resolve"),
    "wrong slots": ("node1 slots=512\n", "zero1_fp32", "node1 has slots=512, but only"),
    "duplicate": (
        "node1 slots=1\nnode1 slots=1\n",
        "zero1_fp32",
        "line 2: got 'node1 slots=1', expected one line for each",
    ),
    "typo": ("node1 slot=1\n", "zero1_fp32", "line 1: got 'node1 slot=1'"),
    "missing file": (None, "zero1_fp32", "No such file or directory"),
}


@pytest.mark.parametrize("name", HOSTFILES)
def test_a_dry_run_reports_each_problem_of_a_hostfile_in_one_line(
    name: str, two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path
) -> None:
    hostfile, config, problem = HOSTFILES[name]
    if hostfile is not None:
        (tmp_path / "hosts").write_text(hostfile)
    options = ["--preset", "small", "--set", "batch_size=512", "--data", shards_folder, "--hostfile", "hosts"]
    options += ["--deepspeed_config", REPOSITORY / f"ds_configs/{config}.json"]
    process = two_hosts.start(["python", REPOSITORY / "pretrain/run.py", "--dry_run", *options], tmp_path)
    output, _ = process.communicate(timeout=200)
    errors = [line for line in output.splitlines() if line.startswith("run.py: error: ")]
    if problem is None:
        assert process.returncode == 0, output
        assert "nothing was started; " in output and "ServerAliveInterval" in output
        assert "node2: 1 slot; " in output and "same code, packages and data" in output
        assert "deepspeed --hostfile hosts --module pretrain.run --preset small" in output
    else:
        assert process.returncode == 2, output
        assert len(errors) == 1 and problem in errors[0], output
    assert not (tmp_path / "runs").exists()
