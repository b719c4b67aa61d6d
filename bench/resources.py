"""Resources that a command uses: time, CPU, memory, open files, disk, and bytes between processes.

Reads /proc twice per second for every descendant of this process, in any namespace (Linux only).
"""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

EVERY = 0.5
"""Seconds between two looks at the processes."""
DISK_EVERY = 10
"""Looks at the processes per look at the disk, which takes longer."""


class Peak(NamedTuple):
    """The maximum over processes, and the process that reached it."""

    value: int = 0
    process: str = ""


class Usage(NamedTuple):
    """Resources used by a command and all its descendants."""

    seconds: float
    cpu_seconds: float
    processes: int
    """Most processes at the same time."""
    largest: Peak
    """Peak bytes of one process, as PSS, which divides shared memory among its users."""
    together: int
    """Peak PSS of all processes, in bytes."""
    machine: int
    """Peak bytes in use on the machine, beyond those before the start."""
    descriptors: Peak
    maps: Peak
    disk: int
    """Peak bytes in the folder, beyond those before the start."""


class Line(NamedTuple):
    """A printed line, its time, and the bytes sent until then."""

    text: str
    seconds: float
    sent: int


class Finished(NamedTuple):
    """A command that has ended."""

    code: int
    lines: list[Line]
    usage: Usage

    @property
    def output(self) -> str:
        return "\n".join(line.text for line in self.lines)


def measure(
    start: Callable[[], "subprocess.Popen[str]"],
    folder: Path,
    sent: Callable[[], int] = lambda: 0,
    act: Callable[["subprocess.Popen[str]", Line], None] = lambda process, line: None,
    poll: Callable[["subprocess.Popen[str]"], None] = lambda process: None,
) -> Finished:
    """Runs a command to its end and measures its resources.

    Args:
        start: starts the command with its output in a pipe.
        folder: the folder it writes to, for disk usage.
        sent: returns the bytes that its processes have sent so far.
        act: called with every printed line.
        poll: called twice per second.
    """
    watch = _Watch(folder)
    process = start()
    assert process.stdout is not None
    watching = threading.Thread(target=watch.run, args=(process, poll), daemon=True)
    watching.start()
    lines = []
    for text in process.stdout:
        lines.append(Line(text.rstrip("\n"), watch.seconds, sent()))
        act(process, lines[-1])
    code = process.wait()
    watch.ended.set()
    watching.join()
    return Finished(code, lines, watch.usage())


class _Watch:
    """Watches the processes until `ended` is set."""

    def __init__(self, folder: Path) -> None:
        self.ended = threading.Event()
        self._folder = folder
        self._started = time.monotonic()
        self._machine_before, self._disk_before = _machine(), disk_of(folder)
        self._peaks: dict[str, int] = dict.fromkeys(("processes", "together", "machine", "disk"), 0)
        self._single: dict[str, Peak] = dict.fromkeys(("largest", "descriptors", "maps"), Peak())
        self._cpu: dict[tuple[int, float], float] = {}
        self._others = set(psutil.Process().children(recursive=True))
        """Processes older than the command, such as the hosts it runs on."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def run(self, process: "subprocess.Popen[str]", poll: Callable[["subprocess.Popen[str]"], None]) -> None:
        looks = 0
        while not self.ended.wait(EVERY):
            self._look(with_disk=looks % DISK_EVERY == 0)
            poll(process)
            looks += 1
        self._look(with_disk=True)

    def _look(self, with_disk: bool) -> None:
        found = [child for child in psutil.Process().children(recursive=True) if child not in self._others]
        sizes = [size for child in found if (size := self._see(child)) is not None]
        self._raise("processes", len(sizes))
        self._raise("together", sum(sizes))
        self._raise("machine", _machine() - self._machine_before)
        if with_disk:
            self._raise("disk", disk_of(self._folder) - self._disk_before)

    def _see(self, child: psutil.Process) -> int | None:
        """Records one process's resources; returns its PSS, or None if it has ended."""
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            times, folder = child.cpu_times(), Path(f"/proc/{child.pid}")
            self._cpu[child.pid, child.create_time()] = times.user + times.system
            rollup = (folder / "smaps_rollup").read_text()
            size = 1024 * int(rollup.split("\nPss:", 1)[1].split(None, 1)[0])
            values = {"largest": size, "descriptors": sum(1 for _ in (folder / "fd").iterdir())}
            values["maps"] = (folder / "maps").read_text().count("\n")
            for name, value in values.items():
                if value > self._single[name].value:
                    self._single[name] = Peak(value, " ".join(child.cmdline())[-120:])
            return size
        return None

    def _raise(self, name: str, value: int) -> None:
        self._peaks[name] = max(self._peaks[name], value)

    def usage(self) -> Usage:
        values: dict[str, Any] = {**self._peaks, **self._single}
        return Usage(seconds=self.seconds, cpu_seconds=sum(self._cpu.values()), **values)


def _machine() -> int:
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)


def disk_of(folder: Path) -> int:
    """Bytes that a folder occupies on disk; links are not followed."""
    total, open_folders = 0, [folder]
    while open_folders:
        with contextlib.suppress(OSError), os.scandir(open_folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # removed meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        open_folders.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def start(command: Sequence[object], folder: Path, **environment: str) -> "subprocess.Popen[str]":
    """Starts a command in a folder and in a new session, with its output in a pipe."""
    return subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
