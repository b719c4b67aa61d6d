"""Everything each rank prints, kept in the run folder: RUN/logs/rank-0000.log, one start after the other.

The terminal shows the run itself and errors; what libraries log below an error is in the log only.
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
    """From here on everything this rank prints is also in its log, and the stack of a crash such as SIGSEGV.

    What libraries log below an error, and Python's warnings, are in the log only.
    """
    (folder / LOGS).mkdir(parents=True, exist_ok=True)
    record = EndRecord.of(rank)
    write_record(folder, record)
    log = rank_log(folder, rank).open("a", buffering=1)
    log.write(f"--- {record.time} {record.name}, process {record.process}\n")
    sys.stdout, sys.stderr = Both(sys.stdout, log), Both(sys.stderr, log)
    faulthandler.enable(log, all_threads=False)
    # Every logger there is: those that libraries make later pass on to the root, whose handlers these are too.
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
    """The end of a rank's log, as far as this machine sees it."""
    try:
        return rank_log(folder, rank).read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def rank_log(folder: Path, rank: int) -> Path:
    return folder / LOGS / f"rank-{rank:04d}.log"


def printable_lines(text: str) -> str:
    """The text with each of its lines as `printable` shows it."""
    return "\n".join(map(printable, text.split("\n")))


class Both(io.TextIOBase):
    """A stream whose text also goes to a log, at once: a process that is killed has nothing left to write.

    Of what a rank prints, parts come from elsewhere: names of hosts and files, and what other ranks have said. Its
    lines only show; no control character reaches a terminal, here or where the log is read.

    Without a stream, the log alone.
    """

    def __init__(self, stream: IO[str] | None, log: IO[str]) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        shown = printable_lines(text)
        with contextlib.suppress(OSError):  # a full disk; what was not written is written once there is room
            self._log.write(shown)
        with contextlib.suppress(BrokenPipeError):  # who read it has ended; the rank has yet to save
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
