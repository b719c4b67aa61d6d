"""Claims about cluster/*.sbatch on a real Slurm with two nodes."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.manifest import RECORDS_NAME
from finetune.running.records import read_records
from tests.cluster.runs import LONGER, SLOW_RUN, losses, saved_step, training, wait_for
from tests.cluster.two_hosts import Slurm
from tests.conftest import REPOSITORY

ON_TWO_NODES = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0")


def submit(slurm: Slurm, output: Path, *command: object, folder: Path = REPOSITORY) -> str:
    """Submits a job from this folder; returns its number."""
    options = ["--parsable", f"--output={output}/job.out"]
    return slurm.run("sbatch", *options, *map(str, command), folder=folder).strip()


def submit_training(slurm: Slurm, shards: Path, folder: Path, *changes: str, limits: tuple[str, ...] = ()) -> str:
    """Submits pre-training on both nodes into the folder; returns the job's number."""
    script = (*ON_TWO_NODES, *limits, "cluster/pretrain.sbatch")
    return submit(slurm, folder.parent, *script, *training(shards, folder, *changes)[1:])


def field(slurm: Slurm, job: str, name: str) -> str:
    return dict(part.partition("=")[::2] for part in slurm.run("scontrol", "show", "job", job).split())[name]


def wait_for_end(slurm: Slurm, job: str, folder: Path, seconds: float = 400, state: str = "COMPLETED") -> None:
    ended = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
    wait_for(lambda: field(slurm, job, "JobState") in ended, seconds)
    assert field(slurm, job, "JobState") == state, "".join(path.read_text() for path in folder.glob("*.out"))


@pytest.mark.long
def test_a_signalled_job_saves_is_requeued_and_ends_with_the_losses_of_one_host(
    slurm: Slurm, shards_folder: Path, tmp_path: Path, run_folder: Path, whole: Path
) -> None:
    job = submit_training(slurm, shards_folder, run_folder)
    wait_for(lambda: len(losses(run_folder)) >= 2)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for_end(slurm, job, tmp_path)
    assert field(slurm, job, "Restarts") == "1"
    assert "stopped on request after step" in (tmp_path / "job.out").read_text()
    assert losses(run_folder) == losses(whole)


@pytest.mark.long
def test_a_job_that_reaches_its_time_limit_ends_with_the_losses_of_an_undisturbed_one(
    slurm: Slurm, shards_folder: Path, tmp_path: Path, run_folder: Path, whole_longer: Path
) -> None:
    # Slurm's shortest limit is a minute, and it warns at the 30th second or later. A slow network makes each of the 200
    # steps of the two hosts take over half a second, on any machine.
    slurm.hosts.throttle("node1", "60mbit")
    try:
        job = submit_training(slurm, shards_folder, run_folder, *LONGER, limits=("--time=1", "--signal=B:USR1@1"))
        wait_for_end(slurm, job, tmp_path, 500)
    finally:
        slurm.hosts.unthrottle("node1")
    assert int(field(slurm, job, "Restarts")) >= 1
    assert losses(run_folder) == losses(whole_longer)


@pytest.mark.long
def test_a_job_that_loses_a_node_is_requeued_automatically(
    slurm: Slurm, shards_folder: Path, tmp_path: Path, run_folder: Path, whole_longer: Path
) -> None:
    job = submit_training(slurm, shards_folder, run_folder, *LONGER)
    wait_for(lambda: len(losses(run_folder)) >= 60)
    slurm.hosts.cut("node2")
    for daemon in slurm.hosts.processes("node2", "slurmd -N"):
        os.kill(daemon, signal.SIGKILL)
    try:
        wait_for(lambda: field(slurm, job, "Restarts") == "1")
        wait_for(lambda: not slurm.hosts.processes("node2", "pretrain/run.py"))
    finally:
        slurm.hosts.mend("node2")
        slurm.start_slurmd("node2")
    wait_for_end(slurm, job, tmp_path)
    assert losses(run_folder) == losses(whole_longer)


@pytest.mark.long
def test_a_job_restarts_after_a_rank_is_killed(
    slurm: Slurm, shards_folder: Path, tmp_path: Path, run_folder: Path, whole_longer: Path
) -> None:
    job = submit_training(slurm, shards_folder, run_folder, *LONGER)
    wait_for(lambda: len(losses(run_folder)) >= 60)
    for rank in slurm.hosts.processes("node2", "pretrain/run.py"):
        os.kill(rank, signal.SIGKILL)
    wait_for_end(slurm, job, tmp_path)
    assert field(slurm, job, "Restarts") == "0"
    assert "restart 1 of 3, from step-00000050" in (tmp_path / "job.out").read_text()
    assert losses(run_folder) == losses(whole_longer)


def kill_supervisor(slurm: Slurm, job: str) -> None:
    (supervisor,) = slurm.hosts.processes("node1", "python pretrain/supervise.py")
    os.kill(supervisor, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "state"),
    [(kill_supervisor, "FAILED"), (lambda slurm, job: slurm.run("scancel", job), "CANCELLED")],
    ids=["its supervisor is killed", "canceled"],
)
def test_a_job_that_is_ended_from_outside_has_saved_its_progress(
    end: Callable[[Slurm, str], object], state: str, slurm: Slurm, shards_folder: Path, tmp_path: Path, run_folder: Path
) -> None:
    job = submit_training(slurm, shards_folder, run_folder, *SLOW_RUN)
    wait_for(lambda: len(losses(run_folder)) >= 2)
    end(slurm, job)
    wait_for_end(slurm, job, tmp_path, state=state)
    wait_for(lambda: not slurm.hosts.processes("node1", "pretrain/run.py"), 40)
    assert saved_step(run_folder) == max(losses(run_folder))


@pytest.mark.long
def test_a_user_error_ends_the_job_at_once(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, *ON_TWO_NODES, "cluster/pretrain.sbatch", "--data", tmp_path / "nowhere")
    wait_for_end(slurm, job, tmp_path, state="FAILED")
    assert (field(slurm, job, "ExitCode"), field(slurm, job, "Restarts")) == ("2:0", "0")
    assert "nowhere" in (tmp_path / "job.out").read_text()


def test_a_build_uses_all_nodes(slurm: Slurm, shards_folder: Path, tmp_path: Path) -> None:
    raw, vocab = shards_folder.parent / "raw", shards_folder.parent / "vocab"
    options = ["--input", raw, "--vocab", vocab, "--output", tmp_path / "shards", "--seq_length", "32"]
    options += ["--held_out", "0.1", "--shard_mb", "0.1", "--workers", "1"]
    job = submit(slurm, tmp_path, "--nodes=2", "--ntasks=2", "cluster/build.sbatch", *options)
    wait_for_end(slurm, job, tmp_path)
    for path in shards_folder.glob("shard-*"):
        assert (tmp_path / "shards" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.long
def test_a_signalled_build_resumes_at_its_first_unfinished_shard(
    slurm: Slurm, shards_folder: Path, tmp_path: Path
) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(40):
        for path in (shards_folder.parent / "raw").iterdir():
            (raw / f"{number}-{path.name}").write_bytes(path.read_bytes())
    options = ["--input", raw, "--vocab", shards_folder.parent / "vocab", "--seq_length", "32"]
    options += ["--shard_mb", "0.1", "--workers", "1", "--output"]
    folder = tmp_path / "shards"
    job = submit(slurm, tmp_path, "--nodes=2", "--ntasks=2", "cluster/build.sbatch", *options, folder)
    wait_for(lambda: len(list(folder.glob("shard-*.mask.idx"))) >= 4)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: field(slurm, job, "Restarts") == "1")
    # A shard's record is written after its files, so that one without a record is built again.
    paths = [folder / f"{record.stem}.mask.idx" for record in (folder / RECORDS_NAME).glob("shard-*.json")]
    finished = {path: path.stat().st_mtime_ns for path in paths}
    assert finished and not (folder / "manifest.json").exists()
    wait_for_end(slurm, job, tmp_path)
    assert len(list(folder.glob("shard-*.mask.idx"))) > len(finished)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    whole = tmp_path / "whole"
    slurm.hosts.run(["python", REPOSITORY / "data_prep/build_shards.py", *options, whole], tmp_path)
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in whole.glob("shard-*"))


@pytest.mark.long
def test_an_array_fine_tunes_each_task_and_a_signalled_element_resumes(
    slurm: Slurm, stock_model: Path, cola_folder: Path, squad_folder: Path, tmp_path: Path
) -> None:
    for path in (*cola_folder.iterdir(), *squad_folder.iterdir(), REPOSITORY / "finetune", REPOSITORY / "cluster"):
        (tmp_path / path.name).symlink_to(path)
    sizes = ("--ntasks=1", "--cpus-per-task=1", "--gpus-per-node=0", "--array=0,8", f"--output={tmp_path}/%a.out")
    options = ["--data_dir", ".", "--seeds", "1", "--batch_size", "8", "--epochs", "40"]
    job = submit(slurm, tmp_path, *sizes, "cluster/finetune.sbatch", stock_model, *options, folder=tmp_path)
    cola, squad = f"{job}_0", f"{job}_8"
    output = tmp_path / "0.out"
    wait_for(lambda: output.exists() and "epoch 2, " in output.read_text())
    slurm.run("scancel", "--batch", "--signal=USR1", cola)
    for element in (cola, squad):
        wait_for_end(slurm, element, tmp_path)
    assert [field(slurm, element, "Restarts") for element in (cola, squad)] == ["1", "0"]
    assert "resumes after step" in output.read_text()
    (resumed,) = read_records(tmp_path / "runs/finetune/CoLA/results.jsonl")
    (answered,) = read_records(tmp_path / "runs/finetune/squad-2.0/results.jsonl")
    assert answered.run.task == "SQuAD 2.0"
    script = [REPOSITORY / "finetune/run_glue.py", "--task", "CoLA", "--model", stock_model, "--output", "whole"]
    slurm.hosts.run(["python", *script, *options], tmp_path)
    (whole,) = read_records(tmp_path / "whole/results.jsonl")
    assert (resumed.train_losses, resumed.last) == (whole.train_losses, whole.last)


@pytest.mark.parametrize("name", ["build", "pretrain", "finetune"])
def test_slurm_accepts_every_script(name: str, slurm: Slurm) -> None:
    script = f"cluster/{name}.sbatch"
    subprocess.run(["bash", "-n", REPOSITORY / script], check=True)
    fits = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0"]
    slurm.run("sbatch", "--test-only", *fits, script, "exported/base", folder=REPOSITORY)
