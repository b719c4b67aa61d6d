"""Claims about cluster/*.sbatch on a real Slurm with two nodes."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.hosts import Slurm
from tests.cluster.runs import SLOW_RUN, losses, training, wait_for
from tests.conftest import REPOSITORY

ON_TWO_NODES = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0")


def submit(slurm: Slurm, folder: Path, *command: object) -> str:
    """Submits from the repository; returns the job's number."""
    options = ["--parsable", f"--output={folder}/job.out"]
    return slurm.run("sbatch", *options, *map(str, command), folder=REPOSITORY).strip()


def field(slurm: Slurm, job: str, name: str) -> str:
    shown = dict(part.partition("=")[::2] for part in slurm.run("scontrol", "show", "job", job).split())
    return shown[name]


def wait_for_end(slurm: Slurm, job: str, folder: Path, seconds: float = 400) -> None:
    ended = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
    wait_for(lambda: field(slurm, job, "JobState") in ended, seconds)
    assert field(slurm, job, "JobState") == "COMPLETED", (folder / "job.out").read_text()


def test_a_job_that_is_signalled_saves_goes_back_into_the_queue_and_ends_with_the_losses_of_one_host(
    slurm: Slurm, shards_folder: Path, tmp_path: Path, whole: Path
) -> None:
    folder = tmp_path / "run"
    job = submit(slurm, tmp_path, *ON_TWO_NODES, "cluster/pretrain.sbatch", *training(shards_folder, folder)[1:])
    wait_for(lambda: len(losses(folder)) >= 2)
    slurm.run("scancel", "--signal=USR1", job)
    wait_for_end(slurm, job, tmp_path)
    assert field(slurm, job, "Restarts") == "1"
    assert "stopped on request after step" in (tmp_path / "job.out").read_text()
    assert losses(folder) == losses(whole)


@pytest.mark.long
def test_a_job_that_reaches_its_time_limit_ends_with_the_losses_of_one_that_did_not(
    slurm: Slurm, shards_folder: Path, tmp_path: Path
) -> None:
    started = time.monotonic()
    limits = {"whole": "--time=30", "limited": "--time=1"}
    for name, limit in limits.items():
        (tmp_path / name).mkdir()
        options = [*ON_TWO_NODES, limit, "--signal=USR1@10"]
        command = training(shards_folder, tmp_path / name / "run", *SLOW_RUN, "optim.steps=600")[1:]
        job = submit(slurm, tmp_path / name, *options, "cluster/pretrain.sbatch", *command)
        wait_for_end(slurm, job, tmp_path / name, 1500)
        assert (field(slurm, job, "Restarts") == "0") == (name == "whole")
    assert losses(tmp_path / "limited" / "run") == losses(tmp_path / "whole" / "run")
    assert time.monotonic() - started > 60


def test_a_build_spreads_over_the_nodes(slurm: Slurm, shards_folder: Path, tmp_path: Path) -> None:
    raw, vocab = shards_folder.parent / "raw", shards_folder.parent / "vocab"
    options = ["--input", raw, "--vocab", vocab, "--output", tmp_path / "shards", "--seq_length", "32"]
    options += ["--held_out", "0.1", "--chunk_mb", "0.1", "--workers", "1"]
    job = submit(slurm, tmp_path, "--nodes=2", "--ntasks=2", "cluster/build.sbatch", *options)
    wait_for_end(slurm, job, tmp_path)
    for path in shards_folder.glob("shard-*"):
        assert (tmp_path / "shards" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["build", "pretrain", "finetune"])
def test_slurm_understands_every_script(name: str, slurm: Slurm) -> None:
    script = f"cluster/{name}.sbatch"
    subprocess.run(["bash", "-n", REPOSITORY / script], check=True)
    fits = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0"]
    slurm.run("sbatch", "--test-only", *fits, script, "exported/base", folder=REPOSITORY)
