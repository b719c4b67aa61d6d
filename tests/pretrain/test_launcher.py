"""Claims about finding what launched a rank; DeepSpeed's own processes are met in tests/cluster."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.launcher import Process, adopt_slurm, find_runner, launched_slots, launchers
from tests.conftest import REPOSITORY

# What srun gives task 5 of 6, on the second of three nodes.
TASK = {
    "SLURM_JOB_ID": "712",
    "SLURM_STEP_ID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x2)",
    "SLURM_STEP_NODELIST": "gpu[03-05],big1",
}


def test_a_task_of_srun_is_a_rank() -> None:
    environment = dict(TASK)
    adopt_slurm(environment)
    assert {key: environment[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "MASTER_ADDR")} == {
        "RANK": "3",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_SIZE": "2",
        "MASTER_ADDR": "gpu03",
    }
    assert 1024 < int(environment["MASTER_PORT"]) < 32768  # where no other program's outgoing connection is


@pytest.mark.parametrize(
    ("nodes", "first"), [("gpu1", "gpu1"), ("gpu[1-2]", "gpu1"), ("a[07,09],b1", "a07"), ("big-1,gpu[1-2]", "big-1")]
)
def test_the_first_node_is_the_meeting_point(nodes: str, first: str) -> None:
    environment = TASK | {"SLURM_STEP_NODELIST": nodes}
    adopt_slurm(environment)
    assert environment["MASTER_ADDR"] == first


@pytest.mark.parametrize("given", [{"RANK": "0"}, {"SLURM_STEP_ID": None}], ids=["another launcher", "batch script"])
def test_only_a_task_that_srun_itself_started_is_a_rank(given: dict[str, str | None]) -> None:
    environment = {key: value for key, value in (TASK | given).items() if value is not None}
    before = dict(environment)
    adopt_slurm(environment)
    assert environment == before


def test_a_process_that_ended_is_not_alive_though_nobody_has_asked_for_its_end() -> None:
    child = subprocess.Popen(["sleep", "600"])
    process = Process(child.pid, int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]))
    assert process.is_alive
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert not process.is_alive
    child.wait()
    assert not process.is_alive


def test_a_program_that_deepspeed_did_not_start_has_its_parent_alone() -> None:
    assert [process.pid for process in launchers()] == [os.getppid()]
    assert launched_slots() is None
    assert find_runner() is None


ABOVE = """
import subprocess, sys
code = "from pretrain.launcher import find_runner; runner = find_runner(); print(runner.hostfile, runner.takes_part)"
sys.exit(subprocess.call([sys.executable, "-c", code]))
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--hostfile hosts", "{folder}/hosts False"),
        ("--hostfile=/etc/hosts --num_gpus 2", "/etc/hosts True"),
        ("-H hosts -i node1@node2", "{folder}/hosts True"),
        ("--master_port 1234", "None False"),
    ],
)
def test_the_command_of_deepspeed_is_read_up_to_its_script(options: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "deepspeed").write_text(ABOVE)
    command = [sys.executable, "deepspeed", *options.split(), "train.py", "--hostfile", "the script's own"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected.format(folder=tmp_path)
