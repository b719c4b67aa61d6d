"""Claims about hostfiles and the comparison of hosts; tests/cluster asks real hosts by ssh."""

import importlib.metadata
from pathlib import Path

import pytest
from deepspeed.launcher.runner import fetch_hostfile

from electra_sampler.foundation.config import ConfigError
from pretrain.planning.hosts import check_hosts, facts, find_differences, read_hostfile, require_launch
from pretrain.planning.options import RunOptions
from pretrain.run import main
from tests.conftest import REPOSITORY


def test_hosts_keep_their_order_and_comments_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# two\nnode2 slots=8\n\n  node1   slots=4\n")
    assert list(read_hostfile(tmp_path / "hosts").items()) == [("node2", 8), ("node1", 4)]


@pytest.mark.parametrize(("name", "slots"), [("16v100", [8, 8]), ("8v100", [8]), ("local", [2])])
def test_the_shipped_hostfiles_are_valid_and_read_by_deepspeed_as_intended(name: str, slots: list[int]) -> None:
    path = REPOSITORY / "hostfiles" / name
    assert [*read_hostfile(path).values()] == [*fetch_hostfile(str(path)).values()] == slots


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
        ("caf\udce9 slots=1\n", r"hostfile: cannot read .*hosts \('utf-8' codec can't decode"),
    ],
)
def test_every_mistake_is_named(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match=problem) as caught:
        read_hostfile(tmp_path / "hosts")
    assert len(caught.value.problems) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hostfile: cannot read .*16v10 \(No such file"):
        read_hostfile(tmp_path / "16v10")


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
    (line,) = find_differences("node2", 8, ours | change, ours)
    assert problem in line


def test_what_is_missing_on_a_host_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.planning.hosts.PACKAGES", ("torch", "no-such-package"))
    found = facts([str(tmp_path)])
    assert found[f"data {tmp_path}"] == found["no-such-package"] == "missing"
    assert found["torch"] == importlib.metadata.version("torch")


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
