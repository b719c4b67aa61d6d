"""Claims about the lock: one process at a time, released when its holder ends, and the holder is named."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.locks import Held, Lock, Lost, confirm, holder
from tests.conftest import REPOSITORY

TAKE = """
import sys, time
from pathlib import Path
from electra_sampler.foundation.locks import Held, Lock
for start in map(Path, sys.argv[2:]):
    print("ready", flush=True)
    while not start.exists():
        time.sleep(0.001)
try:
    lock = Lock(Path(sys.argv[1]))
    print("taken", flush=True)
except Held as who:
    print("held by", who, flush=True)
sys.stdin.read()  # alive until all have tried
"""


def taker(path: Path, *start: Path) -> subprocess.Popen[str]:
    """Starts a process that takes the lock, once the file `start` exists."""
    command = [sys.executable, "-c", TAKE, str(path), *map(str, start)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def answer(path: Path) -> str:
    """What a process says that tries to take the lock and then ends."""
    return taker(path).communicate("", timeout=60)[0].strip()


@contextmanager
def other(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lock."""
    process = taker(path)
    assert said(process) == "taken"
    yield process
    process.communicate("", timeout=60)


def test_a_lock_is_taken_once_and_free_again_when_released(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    with Lock(path):
        with pytest.raises(Held):
            Lock(path)
        Lock(tmp_path / "other").release()
        assert answer(path).startswith("held by ")
    assert path.read_bytes() == b""
    Lock(path).release()
    assert answer(path) == "taken"


def test_a_refused_process_learns_who_holds_the_lock(tmp_path: Path) -> None:
    with other(tmp_path / "lock") as first:
        with pytest.raises(Held) as caught:
            Lock(tmp_path / "lock")
        assert str(caught.value).startswith(f"process {first.pid} on {socket.gethostname()} since 20")
        assert f": {sys.executable} -c" in str(caught.value) and len(str(caught.value)) < 400
        assert holder(tmp_path / "lock") == str(caught.value)
    assert holder(tmp_path / "lock") is None


def test_who_may_only_read_a_lock_learns_its_holder(tmp_path: Path) -> None:
    ask = "import sys; from electra_sampler.foundation import locks; print(locks.holder(locks.Path(sys.argv[1])))"
    reader = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []  # root may write any file
    with other(tmp_path / "lock") as first:
        (tmp_path / "lock").chmod(0o444)
        command = [*reader, sys.executable, "-c", ask, str(tmp_path / "lock")]
        answered = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert answered.startswith(f"process {first.pid} on ")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            '{"pid": 7, "host": "a\\u001b[31mb", "command": "x\\n\\u202ey"}',
            "process 7 on a\\x1b[31mb since ?: x\\n\\u202ey",
        ),
        *((odd, "a process that has not identified itself yet") for odd in ("[]", "", "{", "\x00\xff")),
    ],
)
def test_the_holder_is_one_line_of_printable_characters_whatever_the_file_contains(
    text: str, shown: str, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    with other(path):
        path.write_bytes(text.encode("latin-1"))
        assert holder(path) == shown


@pytest.mark.parametrize("content", [b"- my notes\n", b'{"version": 3, "packages": []}'], ids=["text", "JSON"])
def test_a_file_of_others_in_the_place_of_the_lock_is_refused_and_left_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"lock: {path} is another file, not a lock; move it away"):
        Lock(path)
    assert path.read_bytes() == content


CHILD = """
import os, sys, time
from pathlib import Path
from electra_sampler.foundation.locks import Lock
lock = Lock(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(60)
print("taken", flush=True)
time.sleep(60)
"""


def test_a_killed_holder_releases_the_lock_at_once_even_if_its_child_lives_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "lock")]
    first = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert said(first) == "taken"
        first.kill()
        first.wait()
        Lock(tmp_path / "lock").release()
    finally:
        os.killpg(first.pid, 9)


def test_a_waiting_process_gets_the_lock_when_its_holder_ends_or_is_refused_in_time(tmp_path: Path) -> None:
    with other(tmp_path / "lock") as first:
        started = time.monotonic()
        with pytest.raises(Held):
            Lock(tmp_path / "lock", patience=0.5)
        assert 0.5 <= time.monotonic() - started < 5
        Timer(0.5, first.kill).start()
        Lock(tmp_path / "lock", patience=30).release()


@pytest.mark.parametrize("orphaned", [False, True])
def test_of_many_simultaneous_processes_exactly_one_gets_the_lock(orphaned: bool, tmp_path: Path) -> None:
    if orphaned:
        with other(tmp_path / "lock") as killed:
            killed.kill()
    racers = [taker(tmp_path / "lock", tmp_path / "start") for _ in range(8)]
    assert {said(racer) for racer in racers} == {"ready"}
    (tmp_path / "start").touch()
    heard = [said(racer) for racer in racers]
    for racer in racers:
        racer.communicate("", timeout=60)
    assert heard.count("taken") == 1
    assert sum(line.startswith("held by ") for line in heard) == 7


def test_asking_for_the_holder_neither_takes_nor_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(path) is None and not path.exists()
    with Lock(path):
        assert str(holder(path)).startswith(f"process {os.getpid()} on ")
        assert answer(path).startswith("held by ")


def test_a_lost_lock_is_retaken_unless_another_process_has_it(tmp_path: Path) -> None:
    """A host disconnected from its file server loses its locks; simulated by closing the file a second time."""
    path = tmp_path / "lock"
    confirm(path)  # not held by this process, so there is nothing to lose
    with Lock(path):
        confirm(path)
        path.read_bytes()
        confirm(path)
        assert answer(path).startswith("held by ")
        path.read_bytes()
        with other(path), pytest.raises(Lost, match=f"the lock on {path} was lost"):
            confirm(path)


def test_a_lock_not_released_by_another_hosts_process_is_taken_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either that process was killed, or it still runs and the file system's locks are local to each host."""
    path = tmp_path / "lock"
    words = {"host": "elsewhere", "pid": 7, "since": "2026-01-01", "command": "run"}
    path.write_text(json.dumps(words))
    Lock(path).release()
    said = capsys.readouterr().out
    assert "taken over from process 7 on elsewhere since 2026-01-01: run, which did not release it" in said
    path.write_text(json.dumps(words | {"host": socket.gethostname()}))
    Lock(path).release()
    assert capsys.readouterr().out == ""


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"lock: .*file/lock cannot be created or written to"):
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

from electra_sampler.foundation.locks import Lock
for name in ("one", "two"):
    Lock(Path(sys.argv[1]) / name).release()
print("at work")
"""
"""A process whose locking system calls fail, as on Lustre mounted without `flock`."""


def test_without_locks_the_command_runs_after_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKS, tmp_path], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout == "at work\n", done.stderr
    assert done.stderr.count("\n") == 1
    assert f"WARNING: {tmp_path} lies on a file system without locks (Function not implemented): " in done.stderr
    assert "nothing keeps a second command out of it" in done.stderr
