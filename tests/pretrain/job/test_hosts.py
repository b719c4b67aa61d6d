"""Claims about comparing hosts; asking them by ssh is tested in tests/cluster/test_dry_run.py."""

from pathlib import Path

import pytest

from pretrain.job.hosts import check_hosts, facts, find_differences


def test_a_host_does_not_differ_from_itself(shards_folder: Path) -> None:
    ours = facts([str(shards_folder)])
    assert "missing" not in ours.values()
    assert not list(find_differences("node1", 1, ours | {"skew": 0.0}, ours, "fp32"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"torch": "1.0"}, "node2 has torch 1.0, this machine"),
        ({"code": "abc"}, "node2 has code abc, this machine"),
        ({"skew": 90.0}, "the clock of node2 differs by 90 s"),
        ({"gpus": 4}, "node2 has slots=8, but only 4 GPUs"),
        ({"gpus": 0, "cores": 2}, "node2 has slots=8, but only 2 cores and no GPU"),
        ({"gpus": 0, "cores": 8, "precision": "fp16"}, "fp16 needs GPUs, but node2 has none"),
    ],
    ids=str,
)
def test_each_difference_is_one_line(change: dict[str, object], problem: str) -> None:
    ours = facts([]) | {"gpus": 8}
    theirs = {"skew": 0.0, "precision": "fp32"} | ours | change
    (line,) = find_differences("node2", 8, theirs, ours, theirs["precision"])
    assert problem in line


def test_data_missing_on_a_host_is_a_difference(shards_folder: Path, tmp_path: Path) -> None:
    assert facts([str(tmp_path)])[f"data {tmp_path}"] == "missing"


def test_a_nonexistent_host_is_named() -> None:
    (problem,) = check_hosts({"no-such-host.invalid": 1}, [], "fp32").problems
    assert "no-such-host.invalid cannot be reached" in problem or "no ssh on this machine" in problem


@pytest.mark.parametrize("said", ["", "Welcome \x1b[1mto node1", "\\351t\\351", "{"])
def test_a_host_whose_shell_prints_something_else_is_named_in_one_line(
    said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\nprintf '{said}'\n")
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (problem,) = check_hosts({"node1": 1}, [], "fp32").problems
    assert problem.startswith("hostfile: node1 answers '") and problem.isprintable()


def test_several_hosts_require_ssh_and_pdsh_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problems = check_hosts({"node1": 1, "node2": 1}, [], "fp32").problems
    assert ["no pdsh" in problems[0], *("no ssh" in problem for problem in problems[1:])] == [True] * 3
