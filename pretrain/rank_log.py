"""What each rank says, kept in the run folder: RUN/logs/rank-0000.log, one start after the other."""

import contextlib
import faulthandler
import io
import os
import re
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

LOGS = "logs"
HEADER = re.compile(r"^--- \S+ (rank \d+ on \S+), process \d+$", re.MULTILINE)
"""The first line of each start; the group is the rank's name."""


def keep_rank_log(folder: Path, rank: int) -> None:
    """From here on everything this rank prints is also in its log, and the stack of a crash such as SIGSEGV."""
    (folder / LOGS).mkdir(parents=True, exist_ok=True)
    log = rank_log(folder, rank).open("a", buffering=1)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    log.write(f"--- {now} rank {rank} on {socket.gethostname()}, process {os.getpid()}\n")
    sys.stdout, sys.stderr = Both(sys.stdout, log), Both(sys.stderr, log)
    faulthandler.enable(log)


def last_lines(folder: Path, rank: int, count: int) -> list[str]:
    """The end of a rank's log, as far as this machine sees it."""
    try:
        return rank_log(folder, rank).read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def rank_logs(folder: Path) -> Iterator[Path]:
    """The logs there are, in the order of ranks."""
    yield from sorted((folder / LOGS).glob("rank-*.log"))


def rank_log(folder: Path, rank: int) -> Path:
    return folder / LOGS / f"rank-{rank:04d}.log"


class Both(io.TextIOBase):
    """A stream whose text also goes to a log, at once: a process that is killed has nothing left to write."""

    def __init__(self, stream: IO[str], log: IO[str]) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):  # a full disk; what was not written is written once there is room
            self._log.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()
