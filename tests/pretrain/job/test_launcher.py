"""Claims about launchers; tests/cluster has DeepSpeed's real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.job.launcher import adopt_slurm, is_alive, launchers, missing_tasks, number_of
from tests.conftest import REPOSITORY, needs, unshare

# Environment that srun gives task 5 of 6, on the second of three nodes.
TASK = {
    "SLURM_JOB_ID": "712",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_LAUNCHER_PORT": "41245",
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
    expected = {"RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "MASTER_ADDR": "gpu03"}
    assert expected.items() <= environment.items()
    assert 1024 < int(environment["MASTER_PORT"]) < 32768  # outside the range of outgoing connections


def test_the_port_cannot_be_derived_from_the_job_number() -> None:
    steps = [TASK | {"SLURM_STEP_LAUNCHER_PORT": str(port)} for port in (41245, 41245, 52001)]
    for environment in steps:
        adopt_slurm(environment)
    first, same, other = (environment["MASTER_PORT"] for environment in steps)
    assert first == same != other


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "٣", "9" * 5000, "1\n2"])
def test_an_environment_variable_that_is_not_a_number_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE: got '.* expected a whole number; start the processes with"):
        number_of("WORLD_SIZE", "1")


@pytest.mark.parametrize(
    ("nodes", "first"), [("gpu1", "gpu1"), ("gpu[1-2]", "gpu1"), ("a[07,09],b1", "a07"), ("big-1,gpu[1-2]", "big-1")]
)
def test_the_first_node_is_the_meeting_point(nodes: str, first: str) -> None:
    environment = TASK | {"SLURM_STEP_NODELIST": nodes}
    adopt_slurm(environment)
    assert environment["MASTER_ADDR"] == first


@pytest.mark.parametrize("given", [{"RANK": "0"}, {"SLURM_STEP_ID": None}], ids=["another launcher", "batch script"])
def test_only_a_task_started_by_srun_itself_is_a_rank(given: dict[str, str | None]) -> None:
    before = {key: value for key, value in (TASK | given).items() if value is not None}
    environment = dict(before)
    adopt_slurm(environment)
    assert environment == before


def test_only_a_shell_of_srun_with_several_tasks_lacks_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*missing_tasks()] == []
    for name, value in (TASK | {"SLURM_PTY_PORT": "40000"}).items():
        monkeypatch.setenv(name, value)
    (warning,) = missing_tasks()
    assert "one of 6 tasks of its Slurm step" in warning and "--ntasks=1" in warning
    for name, other in (("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PTY_PORT", None), ("TORCHELASTIC_RUN_ID", "7")):
        with monkeypatch.context() as changed:
            changed.setenv(name, other) if other else changed.delenv(name)
            assert [*missing_tasks()] == []


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "600"])
    process = psutil.Process(child.pid)
    assert is_alive(process)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert not is_alive(process)
    child.wait()
    assert not is_alive(process)


def test_a_rank_not_started_by_deepspeed_has_only_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert [process.pid for process in launchers()] == [os.getppid()]
    monkeypatch.delenv("RANK")
    assert launchers() == []


CALL = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
FOUND = "from pretrain.job.launcher import launchers; print(len({found.pid for found in launchers()}))"
ODD = b"caf\xe9"  # Latin-1, not valid UTF-8


def test_a_command_line_or_name_that_is_not_text_stops_no_launch(tmp_path: Path) -> None:
    """Tries processes above the launcher, the launcher itself, and an unrelated process on the machine."""
    shell = tmp_path / os.fsdecode(ODD)
    shell.symlink_to("/bin/sh")
    node_launcher = [sys.executable, "-c", CALL, "-c", FOUND, "--world_info=e30", "--master_port=29500", ODD]
    (tmp_path / "supervise.py").write_text(CALL)
    (tmp_path / "deepspeed").write_text(f"import subprocess; subprocess.call({node_launcher!r})")
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", ODD])
    found = subprocess.run(
        [shell, "-c", '"$@"; exit $?', "sh", sys.executable, tmp_path / "supervise.py", tmp_path / "deepspeed"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "RANK": "0"},
        capture_output=True,
        text=True,
    )
    stranger.kill()
    stranger.wait()
    assert found.stdout == "4\n", found.stderr  # node launcher, deepspeed, supervisor, and here the rank itself


def test_the_first_process_of_a_container_has_no_launcher() -> None:
    needs(namespaces=("pid",))
    command = [*unshare("pid"), sys.executable, "-c", FOUND]
    found = subprocess.run(command, cwd=REPOSITORY, env=os.environ | {"RANK": "0"}, capture_output=True, text=True)
    assert found.stdout == "0\n", found.stderr
