"""A lock that lets only one process work in a folder, released by the system when its holder dies.

It is a POSIX record lock on a file that is never removed. It works across hosts on every shared file system with locks,
the file server itself enforces it, and no child inherits it. The package `filelock` uses flock(2) instead, which a
forked child keeps after its parent is killed, and which some cluster file systems enforce only within each host. A
record lock also ends when its holder closes any other handle of the file, so only this module opens the file. The file
names the holder for error messages. It is emptied on release, so a name found in an unlocked file belongs to a killed
process.

Supported file systems, and the behavior on one without locks: docs/evidence/faults.md.
"""

import contextlib
import errno
import fcntl
import functools
import json
import os
import shlex
import socket
import struct
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from electra_sampler.foundation.command_line import print_warning, printable
from electra_sampler.foundation.config import ConfigError, explained

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
LOOK_EVERY = 0.1
"""Seconds between two attempts."""
LONGEST_SHOWN = 200  # characters of the holder's command in a message
_FLOCK = "hhqqi"
"""C's struct flock on 64-bit Linux: type, whence, start, length, process."""

_held: dict[tuple[int, int], "Lock"] = {}
"""This process's locks by device and inode: the system would grant the same process a second lock on a file."""


class Held(Exception):
    """Raised when the lock is held already; the message describes its holder in one line."""


class Lost(RuntimeError):
    """Raised when another process has taken over the lock that this one held."""


class Lock(contextlib.AbstractContextManager["Lock"]):
    """A lock that this process holds until it releases it or ends."""

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        """Takes the lock on `path`, creating the file if missing, and retries for `patience` seconds.

        Raises:
            Held: the lock is held already.
            ConfigError: the file cannot be created or written to.
        """
        self.words: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(sys.orig_argv),
        }
        if who := _waited(lambda: self._try(path), patience):
            raise Held(who)

    def _try(self, path: Path) -> str | None:
        """Takes the lock and returns None, or returns a description of its holder."""
        if lock := _held_here(path):  # do not open the file: closing it would release the lock
            return _described(lock.words)
        with explained(
            f"lock: {path} cannot be created or written to", "name another folder or fix its permissions", OSError
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # held by another process: EAGAIN or EACCES
            who = _described(_read(self.file))
            os.close(self.file)
            return who
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            _warn_once(path.parent.resolve(), os.strerror(error.errno))
        before, status = _read(self.file), os.fstat(self.file)
        if status.st_size and "pid" not in before:
            os.close(self.file)
            raise ConfigError(f"lock: {path} is another file, not a lock; move it away, or name another folder")
        if before.get("host", self.words["host"]) != self.words["host"]:
            print(
                f"{path}: taken over from {_described(before)}, which did not release it; if that process is still"
                " running, this file system enforces locks only within each host (docs/evidence/faults.md): stop one of"
                " the two",
                flush=True,
            )
        self._key = status.st_dev, status.st_ino
        _held[self._key] = self
        with contextlib.suppress(OSError):  # on a full disk the lock still holds, but its holder is not named
            self._write(json.dumps(self.words).encode())
        return None

    def release(self) -> None:
        """Releases the lock."""
        with contextlib.suppress(OSError):
            self._write(b"")
        os.close(self.file)
        del _held[self._key]

    def _write(self, text: bytes) -> None:
        """Replaces the lock file's content, flushed to the disk because other hosts read the file server's copy."""
        os.ftruncate(self.file, 0)
        os.pwrite(self.file, text, 0)
        os.fsync(self.file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder(path: Path) -> str | None:
    """Describes the holder of the lock on `path`, maybe this process; None if it is free. Does not take it."""
    if lock := _held_here(path):
        return _described(lock.words)
    try:
        with path.open("rb", buffering=0) as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))[0]
            return None if kind == fcntl.F_UNLCK else _described(_read(file.fileno()))
    except OSError:
        return None  # no such file, or a file system without locks


def still_held(path: Path, patience: float) -> str | None:
    """Waits up to `patience` seconds for the lock on `path` to be free; returns its holder, or None."""
    return _waited(lambda: holder(path), patience)


def _waited(who_holds: Callable[[], str | None], patience: float) -> str | None:
    """Asks who holds a lock until nobody does or `patience` seconds are over; returns the last answer."""
    deadline = time.monotonic() + patience
    while (who := who_holds()) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    return who


def confirm(path: Path) -> None:
    """Checks, before this process writes, that it still holds its lock on `path`.

    A host loses it when it is cut off from the file server for longer than the server's lease, or when the folder is
    removed and made again.

    Raises:
        Lost: another process has the lock.
    """
    if lock := _held_here(path):
        try:
            fcntl.lockf(lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no effect while this process holds it
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise Lost(
                    f"the lock on {path} was lost while the file server was unreachable, and another process has it"
                    " now; nothing more is written"
                ) from error
    elif who := holder(path):
        raise Lost(f"the lock on {path} was removed, and {who} has created it again; nothing more is written")


def _held_here(path: Path) -> Lock | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return _held.get((status.st_dev, status.st_ino))


def _read(file: int) -> dict[str, Any]:
    """Reads the holder's description of itself; empty if none is written yet, or if the file holds anything else."""
    try:
        words = json.loads(os.pread(file, 1 << 16, 0))
    except (OSError, ValueError):
        return {}
    return words if isinstance(words, dict) else {}


def _described(words: dict[str, Any]) -> str:
    """Describes the holder of a lock in one printable line."""
    if not words:
        return "a process that has not identified itself yet"
    pid, host, since, command = (str(words.get(key, "?")) for key in ("pid", "host", "since", "command"))
    if len(command) > LONGEST_SHOWN:
        command = command[:LONGEST_SHOWN] + " ..."
    return printable(f"process {pid} on {host} since {since}: {command}")


@functools.cache
def _warn_once(folder: Path, why: str) -> None:
    print_warning(
        f"{folder} lies on a file system without locks ({why}): nothing keeps a second command out of it; start no"
        " other command here while this one runs (docs/evidence/faults.md)",
        to=sys.stderr,
    )
