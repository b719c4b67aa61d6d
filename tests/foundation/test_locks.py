"""Claims about the lock: one process at a time, free with its holder's end, and its holder named."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foundation.config import ConfigError
from foundation.locks import Held, Lock, Lost, confirm, holder
from tests.conftest import REPOSITORY

TAKE = """
import sys, time
from pathlib import Path
from foundation.locks import Held, Lock
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
try:
    lock = Lock(Path(sys.argv[1]))
    print("taken", flush=True)
except Held as who:
    print("held by", who, flush=True)
sys.stdin.read()  # alive until all have tried
"""


def taker(path: Path, at: float = 0.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TAKE, str(path), str(at)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> None:
    process.communicate("", timeout=60)


def test_a_lock_is_had_once_and_free_again_when_released(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    with Lock(path):
        with pytest.raises(Held):
            Lock(path)
        Lock(tmp_path / "other").release()
        refused = taker(path)
        assert said(refused).startswith("held by ")
        ended(refused)
    assert path.read_bytes() == b""
    Lock(path).release()
    free = taker(path)
    assert said(free) == "taken"
    ended(free)


def test_who_is_refused_learns_who_has_it(tmp_path: Path) -> None:
    first = taker(tmp_path / "lock")
    assert said(first) == "taken"
    with pytest.raises(Held) as caught:
        Lock(tmp_path / "lock")
    assert str(caught.value).startswith(f"process {first.pid} on {socket.gethostname()} since 20")
    assert f": {sys.executable} -c" in str(caught.value) and len(str(caught.value)) < 400
    assert holder(tmp_path / "lock") == str(caught.value)
    ended(first)
    assert holder(tmp_path / "lock") is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            '{"pid": 7, "host": "a\\u001b[31mb", "command": "x\\n\\u202ey"}',
            "process 7 on a\\x1b[31mb since ?: x\\n\\u202ey",
        ),
        ("[]", "a process that has not said yet which it is"),
        ("", "a process that has not said yet which it is"),
        ("{", "a process that has not said yet which it is"),
        ("\x00\xff", "a process that has not said yet which it is"),
    ],
)
def test_the_holder_is_one_line_of_printable_characters_whatever_its_file_holds(
    text: str, shown: str, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    first = taker(path)
    assert said(first) == "taken"
    with path.open("r+b") as file:
        file.truncate()
        file.write(text.encode("latin-1"))
    assert holder(path) == shown
    ended(first)


CHILD = """
import os, sys, time
from pathlib import Path
from foundation.locks import Lock
lock = Lock(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(60)
print("taken", flush=True)
time.sleep(60)
"""


def test_a_killed_holder_frees_it_at_once_though_a_child_of_it_lives_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "lock")]
    first = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert said(first) == "taken"
        first.kill()
        first.wait()
        Lock(tmp_path / "lock").release()
    finally:
        os.killpg(first.pid, 9)


def test_who_waits_gets_it_when_its_holder_ends_and_else_is_refused_in_time(tmp_path: Path) -> None:
    first = taker(tmp_path / "lock")
    assert said(first) == "taken"
    started = time.monotonic()
    with pytest.raises(Held):
        Lock(tmp_path / "lock", patience=0.5)
    assert 0.5 <= time.monotonic() - started < 5
    assert first.stdin is not None
    first.stdin.close()
    Lock(tmp_path / "lock", patience=30).release()


@pytest.mark.parametrize("orphaned", [False, True])
def test_of_many_processes_at_once_one_alone_gets_it(orphaned: bool, tmp_path: Path) -> None:
    if orphaned:
        killed = taker(tmp_path / "lock")
        assert said(killed) == "taken"
        killed.kill()
        killed.wait()
    at = time.time() + 2
    racers = [taker(tmp_path / "lock", at) for _ in range(8)]
    heard = [said(racer) for racer in racers]
    for racer in racers:
        ended(racer)
    assert heard.count("taken") == 1
    assert sum(line.startswith("held by ") for line in heard) == 7


def test_asking_who_has_it_neither_takes_nor_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(path) is None and not path.exists()
    with Lock(path):
        assert str(holder(path)).startswith(f"process {os.getpid()} on ")
        refused = taker(path)
        assert said(refused).startswith("held by ")
        ended(refused)


def test_a_lock_that_was_lost_is_had_again_unless_another_process_has_taken_it(tmp_path: Path) -> None:
    """As a host loses it that was cut off from its file server; here, by closing the file a second time."""
    path = tmp_path / "lock"
    confirm(path)  # not this process's: nothing to lose
    with Lock(path):
        confirm(path)
        path.read_bytes()
        confirm(path)
        refused = taker(path)
        assert said(refused).startswith("held by ")
        ended(refused)
        path.read_bytes()
        other = taker(path)
        assert said(other) == "taken"
        with pytest.raises(Lost, match=f"the lock on {path} was lost"):
            confirm(path)
        ended(other)


def test_a_lock_that_another_hosts_process_did_not_release_is_taken_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That process was killed; or it still runs, where the file system keeps locks to each host."""
    path = tmp_path / "lock"
    words = {"host": "elsewhere", "pid": 7, "since": "2026-01-01", "command": "run"}
    path.write_text(json.dumps(words))
    Lock(path).release()
    said = capsys.readouterr().out
    assert "taken over from process 7 on elsewhere since 2026-01-01: run, which did not release it" in said
    path.write_text(json.dumps(words | {"host": socket.gethostname()}))
    Lock(path).release()
    assert capsys.readouterr().out == ""


def test_a_folder_that_takes_no_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"lock: .*file/lock cannot be made or written to"):
        Lock(tmp_path / "file" / "lock")


WITHOUT_LOCKS = """
import ctypes, errno, fcntl, platform, struct, sys
from pathlib import Path

def code(operation, value, yes=0, no=0):
    return struct.pack("HBBI", operation, yes, no, value)

number = {"x86_64": 72, "aarch64": 25}[platform.machine()]
program = b"".join((
    code(0x20, 0), code(0x15, number, 0, 3),  # of the system's calls, fcntl
    code(0x20, 24), code(0x15, fcntl.F_SETLK, 0, 1),  # asked for a lock
    code(0x06, 0x00050000 | errno.ENOSYS),  # has none
    code(0x06, 0x7FFF0000),
))
kept = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, struct.pack("HL", len(program) // 8, ctypes.addressof(kept)), 0, 0) == 0, ctypes.get_errno()

from foundation.locks import Lock
for name in ("one", "two"):
    Lock(Path(sys.argv[1]) / name).release()
print("at work")
"""
"""A process that the system refuses locks, by a filter on its calls, as Lustre does that is mounted without `flock`."""


def test_without_locks_the_work_is_done_after_one_loud_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_LOCKS, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout == "at work\n", done.stderr
    assert done.stderr.count("\n") == 1
    assert f"WARNING: {tmp_path} lies on a file system without locks (" in done.stderr
    assert "; Function not implemented): nothing keeps a second command out of it" in done.stderr
