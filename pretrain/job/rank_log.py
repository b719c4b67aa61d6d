"""The log of everything a rank prints, over all starts: RUN/logs/rank-0000.log.

The terminal shows the run's own output and errors; library messages below level ERROR go to the log only.
"""

import contextlib
import faulthandler
import io
import logging
import sys
from pathlib import Path
from typing import IO

from foundation.command_line import printable
from pretrain.job.end_record import LOGS, EndRecord, write_record

REMARK = "[%(asctime)s] [%(levelname)s] [%(name)s] %(message)s"


def keep_rank_log(folder: Path, rank: int) -> None:
    """Copies everything this rank prints from now on to its log, including the stack of a crash such as SIGSEGV.

    Library messages below level ERROR, and Python's warnings, go to the log only.
    """
    (folder / LOGS).mkdir(parents=True, exist_ok=True)
    record = EndRecord.of(rank)
    write_record(folder, record)
    log = rank_log(folder, rank).open("a", buffering=1)
    log.write(f"--- {record.time} {record.name}, process {record.process}\n")
    sys.stdout, sys.stderr = Both(sys.stdout, log), Both(sys.stderr, log)
    faulthandler.enable(log, all_threads=False)
    # Sets the handlers of all existing loggers; loggers made later propagate to the root, which has them too.
    remarks, errors = logging.StreamHandler(Both(None, log)), logging.StreamHandler(sys.stderr)
    remarks.addFilter(lambda remark: remark.levelno < logging.ERROR)
    errors.setLevel(logging.ERROR)
    for handler in (remarks, errors):
        handler.setFormatter(logging.Formatter(REMARK))
    logging.captureWarnings(True)
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            alone = logger is logging.root or not logger.propagate
            logger.handlers = [remarks, errors] if alone else []


def last_lines(folder: Path, rank: int, count: int) -> list[str]:
    """Returns the last `count` lines of a rank's log; empty if this machine cannot read it."""
    try:
        return rank_log(folder, rank).read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def rank_log(folder: Path, rank: int) -> Path:
    return folder / LOGS / f"rank-{rank:04d}.log"


def printable_lines(text: str) -> str:
    """Applies `printable` to each line of the text."""
    return "\n".join(map(printable, text.split("\n")))


class Both(io.TextIOBase):
    """A stream that also writes its text to a log, unbuffered, so that a killed process loses nothing.

    Parts of the output come from outside: names of hosts and files, messages of other ranks. So control characters are
    escaped, and none reaches a terminal, here or where the log is read.

    With `stream` None, writes only to the log.
    """

    def __init__(self, stream: IO[str] | None, log: IO[str]) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        shown = printable_lines(text)
        with contextlib.suppress(OSError):  # full disk; the text stays buffered until there is room
            self._log.write(shown)
        with contextlib.suppress(BrokenPipeError):  # the reader has ended; the rank must still save
            if self._stream:
                self._stream.write(shown)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self._stream:
                self._stream.flush()

    def isatty(self) -> bool:
        return bool(self._stream and self._stream.isatty())

    def fileno(self) -> int:
        return (self._stream or self._log).fileno()
