"""A rank's files in the run folder: its log and the record of its end.

RUN/logs/rank-0000.log has everything the rank prints, over all starts. RUN/logs/rank-0000.json is written when it
starts and completed when it ends: a killed rank leaves it incomplete, which shows the kill.
"""

import contextlib
import faulthandler
import io
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal, NamedTuple, Self

from electra_sampler.foundation.command_line import printable
from electra_sampler.foundation.files import read_file, write_atomically

LOGS = "logs"
REMARK = "[%(asctime)s] [%(levelname)s] [%(name)s] %(message)s"
Reason = Literal["error", "hang", "launcher", "lost", "stopped", "done"]
"""Why a rank ended; `lost`: another rank was unreachable; `launcher`: the launcher exited."""
CAUSES: tuple[Reason | None, ...] = ("error", None, "hang", "launcher", "lost")
"""Reasons of a rank that may have ended the job, the most likely first; `None`: the rank was killed."""


class EndRecord(NamedTuple):
    """Identity of one rank's process, and why it ended."""

    rank: int
    host: str
    process: int
    time: str
    """Start time or, once the process has ended, end time; ISO 8601, UTC."""
    reason: Reason | None = None
    """`None` if the rank is running or was killed."""
    exit_code: int | None = None
    step: int | None = None
    """The last finished step."""
    sentence: str = "exited without a message (probably killed)"

    @classmethod
    def of(cls, rank: int) -> Self:
        """Returns the record of this process at its start."""
        return cls(rank, socket.gethostname(), os.getpid(), now())

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"


def write_record(folder: Path, record: EndRecord) -> None:
    """Writes a rank's record, replacing its previous one."""
    write_atomically(folder / LOGS / f"rank-{record.rank:04d}.json", (json.dumps(record._asdict()) + "\n").encode())


def read_ends(folder: Path) -> list[EndRecord]:
    """Reads the end records of all ranks, in rank order; skips damaged ones."""
    records = []
    for path in sorted((folder / LOGS).glob("rank-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            records.append(EndRecord(**json.loads(read_file(path, "run"))))
    return records


def first_cause(records: Sequence[EndRecord]) -> EndRecord | None:
    """Returns the record of the rank that probably ended the job; `None` if every rank is done or was stopped."""
    causes = [end for end in records if end.reason in CAUSES]
    return min(causes, key=lambda end: (CAUSES.index(end.reason), end.time), default=None)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def rank_log(folder: Path, rank: int) -> Path:
    return folder / LOGS / f"rank-{rank:04d}.log"


def keep_rank_log(folder: Path, rank: int) -> None:
    """Copies everything that this rank prints from now on to its log, including the stack of a crash such as SIGSEGV.

    Library messages below level ERROR, and Python's warnings, go to the log only.
    """
    record = EndRecord.of(rank)
    write_record(folder, record)
    log = rank_log(folder, rank).open("a", buffering=1, encoding="utf-8")
    log.write(f"--- {record.time} {record.name}, process {record.process}\n")
    sys.stdout, sys.stderr = Tee(sys.stdout, log), Tee(sys.stderr, log)
    faulthandler.enable(log, all_threads=False)
    remarks, errors = logging.StreamHandler(Tee(None, log)), logging.StreamHandler(sys.stderr)
    remarks.addFilter(lambda remark: remark.levelno < logging.ERROR)
    errors.setLevel(logging.ERROR)
    logging.basicConfig(format=REMARK, handlers=[remarks, errors], force=True)
    logging.captureWarnings(True)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):  # some have their own handlers, such as DeepSpeed's
            logger.handlers, logger.propagate = [], True


def printable_lines(text: str) -> str:
    """Applies `printable` to each line of the text."""
    return "\n".join(map(printable, text.split("\n")))


class Tee(io.TextIOBase):
    """Writes text to a log and, unless it is None, to a stream; unbuffered, so that a killed process loses nothing.

    Escapes control characters, so that none reaches a terminal: some output comes from outside, such as names of hosts
    and files, or messages of other ranks.
    """

    def __init__(self, stream: IO[str] | None, log: IO[str]) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        shown = printable_lines(text)
        with contextlib.suppress(OSError):  # full disk; the text stays buffered until there is room
            self._log.write(shown)
        if self._stream:
            with contextlib.suppress(OSError):  # its reader has ended, or its disk is full; the rank must still save
                self._stream.write(shown)
        return len(text)

    def flush(self) -> None:
        if self._stream:
            with contextlib.suppress(OSError):
                self._stream.flush()

    def isatty(self) -> bool:
        return bool(self._stream and self._stream.isatty())
