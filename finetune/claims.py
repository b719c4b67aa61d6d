"""Which process does which run: any number of them, on any machines, share one output folder.

A process that begins a run creates OUTPUT/claims/RUN.1 exclusively, which one process alone can do, and touches it
while it lives. A claim whose process is gone is taken over by creating RUN.2, and so on: the highest number holds the
run, so that of several processes that find it orphaned one alone takes it.
"""

import contextlib
import json
import os
import socket
import threading
from pathlib import Path

HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0
"""A claim untouched for so long is orphaned; one by a process of this machine that is gone, at once."""


class Claim:
    """A run that this process holds; alive until released or until the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._released = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):  # released just now, or a file system that hiccups: the next beat tells
                os.utime(self._path)

    def release(self) -> None:
        """Gives the run up, finished or not."""
        self._released.set()
        name = self._path.stem
        for number in sorted(_numbers(self._path.parent, name)):  # the highest last: until then it is held
            (self._path.parent / f"{name}.{number}").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other claims lie in it
            self._path.parent.rmdir()


def take(folder: Path, name: str) -> Claim | None:
    """Claims the run `name` for this process; `None` where a living process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(_numbers(folder, name), default=0)
    if newest and _is_alive(folder / f"{name}.{newest}"):
        return None
    path = folder / f"{name}.{newest + 1}"
    try:
        with path.open("x") as file:
            json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
    except FileExistsError:
        return None
    except FileNotFoundError:  # the last claim was released, and its empty folder removed, just now
        return take(folder, name)
    if newest:
        print(f"{name}: taken over from a process that is gone", flush=True)
    return Claim(path)


def is_taken(folder: Path, name: str) -> bool:
    """Whether a process has claimed the run and not released it, be it alive or gone."""
    return bool(_numbers(folder, name))


def any_living(folder: Path) -> bool:
    """Whether some process is at a run of this folder now."""
    claims = [path for path in folder.glob("*.*") if path.suffix[1:].isdigit()]
    newest = {path.stem: max(_numbers(folder, path.stem), default=0) for path in claims}
    return any(number and _is_alive(folder / f"{name}.{number}") for name, number in newest.items())


def _numbers(folder: Path, name: str) -> list[int]:
    return [int(path.suffix[1:]) for path in folder.glob(f"{name}.*")]


def _is_alive(path: Path) -> bool:
    try:
        untouched = _now(path.parent) - path.stat().st_mtime
        holder = json.loads(path.read_text())
    except FileNotFoundError:
        return True  # just released: its run is done, or is left to a later command
    except json.JSONDecodeError:  # just created, not written yet, or its process was killed there
        holder = {}
    if holder.get("host") == socket.gethostname() and not _exists(holder["pid"]):
        return False
    return untouched < STALE_SECONDS


def _now(folder: Path) -> float:
    """The time by the clock that stamps the folder's files, which may be another machine's."""
    probe = folder / f".clock-{socket.gethostname()}-{os.getpid()}"
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink()
    return now


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True
