"""Claims about what a dry run finds on the hosts of a hostfile, which it asks by ssh."""

from pathlib import Path

from tests.cluster.two_hosts import TwoHosts
from tests.conftest import REPOSITORY


def dry_run(hosts: TwoHosts, shards: Path, folder: Path, hostfile: str, batch_size: int) -> tuple[int, str]:
    """Exit code and output of a dry run on node1, which must start nothing."""
    (folder / "hosts").write_text(hostfile)
    options = ["--preset", "small", "--set", f"batch_size={batch_size}", "--data", shards, "--hostfile", "hosts"]
    options += ["--deepspeed_config", REPOSITORY / "ds_configs/zero1_fp32.json"]
    process = hosts.start(["python", REPOSITORY / "pretrain/run.py", "--dry_run", *options], folder)
    output, _ = process.communicate(timeout=200)
    assert not (folder / "runs").exists()
    return process.returncode, output


def test_a_dry_run_describes_hosts_that_are_alike(two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path) -> None:
    code, output = dry_run(two_hosts, shards_folder, tmp_path, "node1 slots=1\nnode2 slots=1\n", 512)
    assert code == 0, output
    assert "nothing was started; " in output and "ServerAliveInterval" in output
    assert "node2: 1 slot; " in output and "same code, packages and data" in output
    assert "deepspeed --hostfile hosts --module pretrain.run --preset small" in output


def test_a_dry_run_reports_the_problem_of_each_host_in_one_line(
    two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path
) -> None:
    code, output = dry_run(two_hosts, shards_folder, tmp_path, "node1 slots=512\nnode3 slots=1\n", 513)
    assert code == 2, output
    errors = [line for line in output.splitlines() if line.startswith("run.py: error: ")]
    assert len(errors) == 2, output
    assert "node1 has slots=512, but only" in errors[0]
    assert "node3 cannot be reached: ssh: Could not resolve" in errors[1]
