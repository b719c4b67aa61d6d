"""Claims about training on two hosts with the real launchers: same losses, no orphans, no endless wait."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.runs import HANG_TIMEOUT, LONGER, deepspeed, losses, saved_step, training, wait_for
from tests.cluster.two_hosts import ADDRESSES, TwoHosts
from tests.conftest import REPOSITORY
from tests.warm import outputs, two_ranks


def ranks(hosts: TwoHosts) -> list[int]:
    return [pid for host in ADDRESSES for pid in hosts.processes(host, f"-u {REPOSITORY}/pretrain/run.py --local_rank")]


def test_two_hosts_give_the_losses_of_one_also_after_a_kill(
    two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path
) -> None:
    """Under the real launcher, and on one host without it."""
    one, two = tmp_path / "one", tmp_path / "two"
    outputs(two_ranks(*map(str, training(shards_folder, one, "optim.steps=40"))))
    command = [*deepspeed("--hostfile", two_hosts.hostfile), *training(shards_folder, two, "optim.steps=40")]
    process = two_hosts.start(command, tmp_path)
    wait_for(lambda: len(losses(two)) >= 9)
    for host in ADDRESSES:
        for pid in two_hosts.processes(host, f"{REPOSITORY}/pretrain/run.py"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (two / "checkpoints/step-00000040").exists()
    assert "resumed from step" in two_hosts.run(command, tmp_path)
    assert losses(two) == losses(one)


@pytest.mark.long
def test_after_one_host_is_disconnected_the_rerun_command_ends_with_the_same_losses(
    two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path, run_folder: Path, whole: Path
) -> None:
    command = [*deepspeed("--hostfile", two_hosts.hostfile), *training(shards_folder, run_folder)]
    process = two_hosts.start(command, tmp_path, PDSH_SSH_ARGS_APPEND="-o ServerAliveInterval=5")
    wait_for(lambda: len(losses(run_folder)) >= 9)
    two_hosts.cut("node2")
    cut_at = time.monotonic()
    try:
        output, _ = process.communicate(timeout=3 * HANG_TIMEOUT)
        wait_for(lambda: not ranks(two_hosts), HANG_TIMEOUT)
    finally:
        two_hosts.mend("node2")
    assert time.monotonic() - cut_at < 2 * HANG_TIMEOUT
    assert process.returncode
    assert "rank 1 on node2" in output
    two_hosts.run(command, tmp_path)
    assert losses(run_folder) == losses(whole)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["bin/deepspeed ", "pdsh -S", f"{REPOSITORY}/pretrain/supervise.py"])
def test_no_rank_outlives_its_launchers_and_the_rerun_command_finishes_the_run(
    launcher: str, two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path, run_folder: Path, whole_longer: Path
) -> None:
    command = [*deepspeed("--hostfile", two_hosts.hostfile), *training(shards_folder, run_folder, *LONGER)]
    supervised = ["python", REPOSITORY / "pretrain/supervise.py", "--", *command]
    process = two_hosts.start(supervised if "supervise" in launcher else command, tmp_path)
    wait_for(lambda: len(losses(run_folder)) >= 2)
    assert len(ranks(two_hosts)) == 2
    for pid in two_hosts.processes("node1", launcher):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not ranks(two_hosts), HANG_TIMEOUT)
    process.communicate(timeout=60)
    assert saved_step(run_folder) == max(losses(run_folder)) < 200
    two_hosts.run(command, tmp_path)
    assert losses(run_folder) == losses(whole_longer)


@pytest.mark.long
def test_a_supervised_run_restarts_after_a_rank_of_the_other_host_is_killed(
    two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path, run_folder: Path, whole_longer: Path
) -> None:
    command = [*deepspeed("--hostfile", two_hosts.hostfile), *training(shards_folder, run_folder, *LONGER)]
    supervised = ["python", REPOSITORY / "pretrain/supervise.py", "--max_restarts", "1", "--", *command]
    process = two_hosts.start([*supervised, "--hostfile", two_hosts.hostfile], tmp_path)
    wait_for(lambda: len(losses(run_folder)) >= 60)
    for rank in two_hosts.processes("node2", f"-u {REPOSITORY}/pretrain/run.py --local_rank"):
        os.kill(rank, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "supervise: rank 1 on node2: exited without a message" in output
    assert "supervise: restart 1 of 1, from step-00000050" in output
    assert losses(run_folder) == losses(whole_longer)
