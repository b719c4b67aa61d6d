"""Claims about launchers and hostfiles; tests/cluster has DeepSpeed's real processes, and asks hosts by ssh."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from foundation.config import ConfigError
from pretrain.job.launcher import (
    adopt_slurm,
    check_hosts,
    facts,
    find_differences,
    is_alive,
    launchers,
    number_of,
    read_hostfile,
    require_launch,
)
from pretrain.run import main
from pretrain.training.options import RunOptions
from tests.conftest import REPOSITORY

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
    assert {key: environment[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "MASTER_ADDR")} == {
        "RANK": "3",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_SIZE": "2",
        "MASTER_ADDR": "gpu03",
    }
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
    environment = {key: value for key, value in (TASK | given).items() if value is not None}
    before = dict(environment)
    adopt_slurm(environment)
    assert environment == before


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
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", FOUND]
    found = subprocess.run(command, cwd=REPOSITORY, env=os.environ | {"RANK": "0"}, capture_output=True, text=True)
    if "unshare failed" in found.stderr:
        pytest.skip(f"a process cannot have its own numbering here: {found.stderr.strip()}")
    assert found.stdout == "0\n", found.stderr


def test_hosts_keep_their_order_and_comments_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# two\nnode2 slots=8\n\n  node1   slots=4\n")
    assert list(read_hostfile(tmp_path / "hosts").items()) == [("node2", 8), ("node1", 4)]


@pytest.mark.parametrize("name", ["16v100", "8v100", "local"])
def test_the_shipped_hostfiles_are_valid(name: str) -> None:
    slots = read_hostfile(REPOSITORY / "hostfiles" / name)
    assert sum(slots.values()) == {"16v100": 16, "8v100": 8, "local": 2}[name]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("node1 slots=8\nnode1 slots=4\n", "line 2: got 'node1 slots=4', expected one line for each host"),
        ("node1 slot=8\n", r"line 1: got 'node1 slot=8'"),
        ("node1 slots=8 node2 slots=8\n", r"line 1: got 'node1 slots=8 node2 slots=8'"),
        ("node1 slots=8x\n", r"line 1: got 'node1 slots=8x'"),
        ("node1 slots=0\n", "N of 1 or more"),
        ("# nothing\n", "names no host"),
        ("-oProxyCommand=sh slots=1\n", r"line 1: got '-oProxyCommand=sh slots=1'"),
        ("node\x1b[31m slots=1\n", r"line 1: got 'node\\x1b\[31m slots=1'"),
        ("node1 slots=٣\n", "line 1: got 'node1 slots=٣'"),
        (f"node1 slots={'9' * 5000}\n", r"line 1: got 'node1 slots=999.*\.\.\. \(5,\d\d\d characters\)"),
        ("größe slots=1\n", "line 1: got 'größe slots=1'"),
        ("node1 slots=1\x0bnode2 slots=1\n", "line 1: got"),
    ],
)
def test_every_mistake_is_named(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_hostfile(tmp_path / "hosts")
    assert len(caught.value.problems) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hostfile: cannot read .*16v10 \(No such file"):
        read_hostfile(tmp_path / "16v10")


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"caf\xe9 slots=1\n")
    with pytest.raises(ConfigError, match=r"hostfile: cannot read .*hosts \(it is not text\)"):
        read_hostfile(tmp_path / "hosts")


def test_processes_that_do_not_match_the_hostfile_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts").write_text("node1 slots=1\nnode2 slots=1\n")
    for name in ("WORLD_SIZE", "CROSS_SIZE"):
        monkeypatch.setenv(name, "2")
    require_launch(tmp_path / "hosts")
    monkeypatch.setenv("CROSS_SIZE", "1")
    with pytest.raises(ConfigError, match="has 2 slots on 2 hosts, but the job has 2 processes on 1 host; start"):
        require_launch(tmp_path / "hosts")


def test_training_refuses_a_hostfile_that_deepspeed_did_not_use(
    shards_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("node1 slots=8\n")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CROSS_SIZE"):  # as DeepSpeed sets them for one process
        monkeypatch.setenv(name, str(int(name.endswith("SIZE"))))
    with pytest.raises(ConfigError, match="has 8 slots on 1 host, but the job has 1 process on 1 host"):
        main(RunOptions(preset="tiny", data=(shards_folder,), output=tmp_path / "run", hostfile=hostfile))
    assert not (tmp_path / "run").exists()


def test_a_host_does_not_differ_from_itself(shards_folder: Path) -> None:
    ours = facts([str(shards_folder)])
    assert "missing" not in ours.values()
    assert not list(find_differences("node1", 1, ours, ours))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"torch": "1.0"}, "node2 has torch 1.0, this machine"),
        ({"code": "abc"}, "node2 has code abc, this machine"),
        ({"gpus": 4}, "node2 has slots=8, but only 4 GPUs"),
        ({"gpus": 0, "cores": 2}, "node2 has slots=8, but only 2 cores and no GPU"),
    ],
    ids=str,
)
def test_each_difference_is_one_line(change: dict[str, object], problem: str) -> None:
    ours = facts([]) | {"gpus": 8}
    theirs = ours | change
    (line,) = find_differences("node2", 8, theirs, ours)
    assert problem in line


def test_data_missing_on_a_host_is_a_difference(shards_folder: Path, tmp_path: Path) -> None:
    assert facts([str(tmp_path)])[f"data {tmp_path}"] == "missing"


def test_a_nonexistent_host_is_named() -> None:
    (problem,), _ = check_hosts({"no-such-host.invalid": 1}, [])
    assert "no-such-host.invalid cannot be reached" in problem or "no ssh on this machine" in problem


@pytest.mark.parametrize("said", ["", "Welcome \x1b[1mto node1", "\\351t\\351", "{"])
def test_a_host_whose_shell_prints_something_else_is_named_in_one_line(
    said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\nprintf '{said}'\n")
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (problem,), _ = check_hosts({"node1": 1}, [])
    assert problem.startswith("hostfile: node1 answers '") and problem.isprintable()


def test_several_hosts_require_ssh_and_pdsh_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,), _ = check_hosts({"node1": 1, "node2": 1}, [])
    assert "no ssh and no pdsh on this machine" in problem
