"""Claims about hostfiles, including a missing one, which DeepSpeed ignores silently."""

import subprocess
import sys
from pathlib import Path

import pytest

from foundation.config import ConfigError
from pretrain.job.hostfile import read_hostfile, require_launch
from tests.conftest import REPOSITORY, free_port


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
        ("node1 slots=8\nnode1 slots=8\n", "node1 is listed 2 times"),
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


def test_processes_that_do_not_match_the_hostfile_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node1 slots=2\n")
    require_launch(tmp_path / "hosts", 2)
    with pytest.raises(ConfigError, match="has 2 slots, but the job has 1 process; start"):
        require_launch(tmp_path / "hosts", 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "cannot read"), ("node1 slots=8\n", "has node1 slots=8, but DeepSpeed has started localhost slots=1")],
    ids=["missing", "another"],
)
def test_training_refuses_a_hostfile_that_deepspeed_did_not_use(
    text: str | None, problem: str, shards_folder: Path, tmp_path: Path
) -> None:
    hostfile = tmp_path / "hosts"
    deepspeed = [Path(sys.executable).with_name("deepspeed"), "--num_gpus=1", f"--master_port={free_port()}"]
    training = [REPOSITORY / "pretrain/run.py", "--preset=tiny", "--data", shards_folder, "--output", tmp_path / "run"]
    if text is None:
        deepspeed += ["--hostfile", hostfile]
    else:
        hostfile.write_text(text)
        training += ["--hostfile", hostfile]
    finished = subprocess.run([*deepspeed, *training], capture_output=True, text=True, timeout=200)
    assert finished.returncode == 2, finished.stdout + finished.stderr
    assert problem in finished.stderr
    assert not (tmp_path / "run").exists()
