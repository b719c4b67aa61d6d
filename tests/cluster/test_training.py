"""Claims about training on two hosts through the real launchers: the same losses, no orphan, no wait without end."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import ADDRESSES, TwoHosts
from tests.conftest import REPOSITORY
from tests.pretrain.conftest import free_port

HANG_TIMEOUT = 30
"""Seconds; the longest any of these runs may wait for a host that is gone."""
KEEP_ALIVE = {"PDSH_SSH_ARGS_APPEND": "-o ServerAliveInterval=5"}
SHORT_RUN = ("optim.warmup_steps=4", "batch_size=8", "log_every=1", "checkpoint_every=8", "evaluate_sequences=8")
SLOW_RUN = ("model.layers=8", "optim.steps=2000")
"""Long enough to be met in the middle."""


def training(shards: Path, output: Path, *overrides: str) -> list[object]:
    options = ["--preset", "tiny", "--data", shards, "--output", output, "--hang_timeout", HANG_TIMEOUT]
    return [REPOSITORY / "pretrain/run.py", *options, "--set", "optim.steps=12", *SHORT_RUN, *overrides]


def deepspeed(*options: object) -> list[object]:
    return ["deepspeed", f"--master_port={free_port()}", *options]


def losses(folder: Path) -> dict[int, tuple[float, ...]]:
    lines = (folder / "metrics.jsonl").read_text().split("\n")[:-1] if (folder / "metrics.jsonl").exists() else []
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    return {r["step"]: (r["generator_loss"], r["sampler_loss"], r["discriminator_loss"]) for r in records}


def wait_for(condition: Callable[[], Any], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ranks(hosts: TwoHosts) -> list[int]:
    return [pid for host in ADDRESSES for pid in hosts.processes(host, f"-u {REPOSITORY}/pretrain/run.py --local_rank")]


def finished(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    return output


@pytest.fixture(scope="module")
def whole(two_hosts: TwoHosts, shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes on one host, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    two_hosts.run([*deepspeed("--num_gpus=2"), *training(shards_folder, folder / "run")], folder)
    return folder / "run"


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
    (saved,) = (folder / "checkpoints").glob("step-*[0-9]")
    assert int(saved.name.removeprefix("step-")) == max(losses(folder))
