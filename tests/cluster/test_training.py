"""Claims about training on two hosts through the real launchers: the same losses, no orphan, no wait without end."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.hosts import ADDRESSES, TwoHosts
from tests.cluster.runs import HANG_TIMEOUT, SLOW_RUN, deepspeed, losses, training, wait_for
from tests.conftest import REPOSITORY

KEEP_ALIVE = {"PDSH_SSH_ARGS_APPEND": "-o ServerAliveInterval=5"}


def ranks(hosts: TwoHosts) -> list[int]:
    return [pid for host in ADDRESSES for pid in hosts.processes(host, f"-u {REPOSITORY}/pretrain/run.py --local_rank")]


def test_two_hosts_give_the_losses_of_one_though_one_was_cut_off_on_the_way(
    two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path, whole: Path
) -> None:
    folder = tmp_path / "run"
    command = [*deepspeed("--hostfile", two_hosts.hostfile), *training(shards_folder, folder)]
    process = two_hosts.start(command, tmp_path, **KEEP_ALIVE)
    wait_for(lambda: len(losses(folder)) >= 9)
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
    assert losses(folder) == losses(whole)


@pytest.mark.parametrize("launch", ["one host", pytest.param("two hosts", marks=pytest.mark.long)])
def test_ranks_save_and_end_when_their_launcher_is_killed(
    launch: str, two_hosts: TwoHosts, shards_folder: Path, tmp_path: Path
) -> None:
    hosts = ["--num_gpus=2"] if launch == "one host" else ["--hostfile", two_hosts.hostfile]
    folder = tmp_path / "run"
    process = two_hosts.start([*deepspeed(*hosts), *training(shards_folder, folder, *SLOW_RUN)], tmp_path)
    wait_for(lambda: len(losses(folder)) >= 2)
    assert len(ranks(two_hosts)) == 2
    for runner in two_hosts.processes("node1", "bin/deepspeed "):
        os.kill(runner, signal.SIGKILL)
    wait_for(lambda: not ranks(two_hosts), HANG_TIMEOUT)
    output, _ = process.communicate(timeout=60)
    assert "what launched it has ended" in output
    saved = max((folder / "checkpoints").glob("step-*[0-9]"))  # beside those that were due
    assert int(saved.name.removeprefix("step-")) == max(losses(folder))
