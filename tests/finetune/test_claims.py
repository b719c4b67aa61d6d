"""finetune/claims.py: one process a run, and no run lost with its process."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from finetune import claims
from finetune.claims import STALE_SECONDS, any_living, is_taken, take
from tests.conftest import REPOSITORY


def leave_claim(folder: Path, text: str, untouched: float = 0.0) -> None:
    """A claim such as another process leaves, `untouched` seconds ago."""
    folder.mkdir(exist_ok=True)
    path = folder / "run.1"
    path.write_text(text)
    os.utime(path, (time.time() - untouched,) * 2)


def claim_of(host: str, pid: int) -> str:
    return json.dumps({"host": host, "pid": pid})


def gone() -> int:
    """The number of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_is_claimed_once_and_free_again_when_released(tmp_path: Path) -> None:
    claim = take(tmp_path / "claims", "run")
    assert claim is not None
    assert take(tmp_path / "claims", "run") is None
    other = take(tmp_path / "claims", "other")
    assert other is not None
    claim.release()
    again = take(tmp_path / "claims", "run")
    assert again is not None
    again.release()
    other.release()
    assert not (tmp_path / "claims").exists()


def test_the_claim_of_a_process_of_this_machine_that_is_gone_is_taken_over_at_once(tmp_path: Path) -> None:
    leave_claim(tmp_path / "claims", claim_of(socket.gethostname(), gone()))
    claim = take(tmp_path / "claims", "run")
    assert claim is not None
    assert take(tmp_path / "claims", "run") is None
    claim.release()
    assert not (tmp_path / "claims").exists()


@pytest.mark.parametrize("text", [claim_of("elsewhere", 1), ""], ids=["another machine", "killed while writing"])
def test_another_claim_is_taken_over_when_nobody_touches_it(text: str, tmp_path: Path) -> None:
    leave_claim(tmp_path / "claims", text, STALE_SECONDS / 2)
    assert take(tmp_path / "claims", "run") is None
    leave_claim(tmp_path / "claims", text, STALE_SECONDS + 10)
    assert take(tmp_path / "claims", "run") is not None


def test_a_folder_has_someone_at_work_while_one_of_its_claims_lives(tmp_path: Path) -> None:
    assert not any_living(tmp_path / "claims")
    assert not is_taken(tmp_path / "claims", "run")
    leave_claim(tmp_path / "claims", claim_of(socket.gethostname(), gone()))
    assert not any_living(tmp_path / "claims")
    assert is_taken(tmp_path / "claims", "run")
    claim = take(tmp_path / "claims", "SQuAD-2.0-seed1-0123456789")
    assert claim is not None
    assert any_living(tmp_path / "claims")
    claim.release()
    assert not any_living(tmp_path / "claims")
    assert [path.name for path in (tmp_path / "claims").iterdir()] == ["run.1"]


def test_a_living_claim_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.05)
    claim = take(tmp_path, "run")
    assert claim is not None
    os.utime(tmp_path / "run.1", (0, 0))
    deadline = time.monotonic() + 30
    while (tmp_path / "run.1").stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "run.1").stat().st_mtime > 0
    claim.release()


RACE = """
import os, sys, time
from pathlib import Path
from finetune.claims import take
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
won = take(Path(sys.argv[1]), "run") is not None
Path(sys.argv[1]).with_name(f"{won}-{os.getpid()}").touch()
sys.stdin.read()  # alive until all have tried
"""


@pytest.mark.parametrize("orphaned", [False, True])
def test_of_many_processes_at_once_one_alone_gets_the_run(orphaned: bool, tmp_path: Path) -> None:
    if orphaned:
        leave_claim(tmp_path / "claims", claim_of(socket.gethostname(), gone()))
    command = [sys.executable, "-c", RACE, str(tmp_path / "claims"), str(time.time() + 2)]
    racers = [subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE) for _ in range(8)]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*-*"))) < 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    for racer in racers:
        racer.communicate(b"")
    assert sorted(path.name.split("-")[0] for path in tmp_path.glob("*-*")) == ["False"] * 7 + ["True"]
