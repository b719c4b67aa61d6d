"""A lock that one process has on a folder's work, released by the system when its holder dies.

A POSIX record lock on a file that is never removed: every shared file system that has locks carries it from host to
host, the file server itself sees it, and no child inherits it. The package `filelock` takes flock(2) instead, which a
forked child keeps after its parent was killed and some cluster file systems keep to each host. The lock would also end
if its holder closed the file a second time, so only this module opens it. The file says who has the lock, for the
message to others; emptied on release, it tells of a holder that was killed.

Which file systems carry it, and what happens on one without locks: docs/evidence/locks.md.
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
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from foundation.command_line import printable
from foundation.config import ConfigError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
LOOK_EVERY = 0.1
"""Seconds between two tries."""
LONGEST_SHOWN = 200
_FLOCK = "hhqqi"
"""C's struct flock on Linux with 64 bits: type, whence, start, length, process."""

_held: dict[tuple[int, int], "Lock"] = {}
"""Those of this process by their file's device and inode: the system keeps processes apart, not two parts of one."""


class Held(Exception):
    """Another process has the lock; the message is which, in one line."""


class Lost(RuntimeError):
    """The lock was this process's, and is another's now."""


class Lock(contextlib.AbstractContextManager["Lock"]):
    """A lock that this process has; until it is released or the process ends."""

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        """Takes the lock on `path`, made where missing, and tries for so many seconds.

        Raises:
            Held: it is another's.
            ConfigError: the file cannot be made or written to.
        """
        since, command = datetime.now(UTC).isoformat(timespec="seconds"), shlex.join(sys.orig_argv)
        self.words: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": since,
            "command": command,
        }
        deadline = time.monotonic() + patience
        while (who := self._try(path)) is not None:
            if time.monotonic() >= deadline:
                raise Held(who)
            time.sleep(LOOK_EVERY)

    def _try(self, path: Path) -> str | None:
        """Takes the lock, or returns who has it."""
        if lock := _held_here(path):  # not opened, for closing it would release it
            return _described(lock.words)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(
                f"lock: {path} cannot be made or written to ({error.strerror}); name another folder or mend its rights"
            ) from None
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # it is another's: EAGAIN or EACCES
            who = _described(_read(self.file))
            os.close(self.file)
            return who
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            _warn_once(path.parent.resolve(), os.strerror(error.errno))
        before = _read(self.file)
        if before.get("host", self.words["host"]) != self.words["host"]:
            print(
                f"{path}: taken over from {_described(before)}, which did not release it; if it is still at work, this"
                " file system keeps locks to each host (docs/evidence/locks.md): stop one of the two",
                flush=True,
            )
        status = os.fstat(self.file)
        self._key = status.st_dev, status.st_ino
        _held[self._key] = self
        with contextlib.suppress(OSError):  # a full disk: others are refused all the same, without a name
            self._write(json.dumps(self.words).encode())
        return None

    def release(self) -> None:
        """Gives it up."""
        with contextlib.suppress(OSError):
            self._write(b"")
        os.close(self.file)
        del _held[self._key]

    def _write(self, text: bytes) -> None:
        """On the disk when this returns: another host reads what the server has."""
        os.ftruncate(self.file, 0)
        os.pwrite(self.file, text, 0)
        os.fsync(self.file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder(path: Path) -> str | None:
    """Who has the lock on `path` now, this process included; disturbs nobody."""
    if lock := _held_here(path):
        return _described(lock.words)
    try:
        with path.open("r+b", buffering=0) as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))[0]
            return None if kind == fcntl.F_UNLCK else _described(_read(file.fileno()))
    except OSError:
        return None  # no such file, or a file system without locks


def still_held(path: Path, patience: float) -> str | None:
    """Who has the lock on `path`, asked until nobody has or so many seconds are over."""
    deadline = time.monotonic() + patience
    while (who := holder(path)) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    return who


def confirm(path: Path) -> None:
    """Makes sure of a lock of this process, before it writes: a host cut off from its file server for longer than the
    server's lease has lost it, and so has one whose folder was removed and made again.

    Raises:
        Lost: another process has it.
    """
    if lock := _held_here(path):
        try:
            fcntl.lockf(lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # changes nothing while it is this process's
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise Lost(
                    f"the lock on {path} was lost while the file server was out of reach, and another process has it"
                    " now; nothing more is written"
                ) from error
    elif who := holder(path):
        raise Lost(f"the lock on {path} was removed, and {who} has made it anew; nothing more is written")


def _held_here(path: Path) -> Lock | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return _held.get((status.st_dev, status.st_ino))


def _read(file: int) -> dict[str, Any]:
    """What the holder wrote; nothing where it has not yet, or where something else stands there."""
    try:
        words = json.loads(os.pread(file, 1 << 16, 0))
    except (OSError, ValueError):
        return {}
    return words if isinstance(words, dict) else {}


def _described(words: dict[str, Any]) -> str:
    """The holder in one line, whatever characters its file holds."""
    if not words:
        return "a process that has not said yet which it is"
    pid, host, since, command = (str(words.get(key, "?")) for key in ("pid", "host", "since", "command"))
    if len(command) > LONGEST_SHOWN:
        command = command[:LONGEST_SHOWN] + " ..."
    return printable(f"process {pid} on {host} since {since}: {command}")


@functools.cache
def _warn_once(folder: Path, why: str) -> None:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    over = [(place, kind) for _, place, kind, *_ in mounts if folder.is_relative_to(place)]
    place, kind = max(over, key=lambda mount: len(mount[0]), default=("?", "of unknown type"))
    print(
        f"WARNING: {folder} lies on a file system without locks ({kind} at {place}; {why}): nothing keeps a second"
        " command out of it; see to it that none is started while this one runs (docs/evidence/locks.md)",
        file=sys.stderr,
        flush=True,
    )
