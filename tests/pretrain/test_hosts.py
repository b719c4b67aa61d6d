"""Claims about comparing hosts; that they are asked by ssh is claimed in tests/cluster/test_dry_run.py."""

from pathlib import Path

import pytest

from pretrain.hosts import check_hosts, facts, find_differences


def test_a_host_is_like_itself(shards_folder: Path) -> None:
    ours = facts([str(shards_folder)])
    assert "missing" not in ours.values()
    assert not list(find_differences("node1", 1, ours | {"skew": 0.0}, ours))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"torch": "1.0"}, "node2 has torch 1.0, this machine"),
        ({"code": "abc"}, "node2 has code abc, this machine"),
        ({"skew": 90.0}, "the clock of node2 differs by 90 s"),
        ({"gpus": 4}, "node2 slots=8, but it has 4 GPUs"),
        ({"gpus": 0, "cores": 2}, "node2 slots=8, but it has 2 cores and no GPU"),
    ],
    ids=str,
)
def test_each_difference_is_one_line(change: dict[str, object], problem: str) -> None:
    ours = facts([]) | {"gpus": 8}
    (line,) = find_differences("node2", 8, ours | {"skew": 0.0} | change, ours)
    assert problem in line


def test_data_that_a_host_lacks_is_a_difference(shards_folder: Path, tmp_path: Path) -> None:
    assert facts([str(tmp_path)])[f"data {tmp_path}"] == "missing"


def test_a_host_that_does_not_exist_is_named() -> None:
    problems, _ = check_hosts({"no-such-host.invalid": 1}, [])
    assert len(problems) == 1
    assert "no-such-host.invalid cannot be reached" in problems[0] or "no ssh on this machine" in problems[0]
