"""Progress of a long command: on a terminal a bar with the remaining time, in a log an occasional plain line; and a
notice of a long wait.
"""

import io
import sys
import time
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import TypeVar

from tqdm import tqdm

from electra_sampler.foundation.config import counted

_SECONDS_BETWEEN_LINES = 30.0
SILENCE = 10.0
"""Seconds of waiting for others after which a command says so."""
DAY = 86_400
"""Seconds per day."""

Made = TypeVar("Made")


class Progress(tqdm):
    """Shows the number of bytes processed out of `total`; a context manager."""

    def __init__(self, total: int, what: str) -> None:
        self._is_log = not sys.stderr.isatty()
        line = {
            "file": io.StringIO(),
            "bar_format": "{desc}: {percentage:.0f}%, {rate_fmt}, {remaining} left",
            "smoothing": 0,
            "mininterval": _SECONDS_BETWEEN_LINES,
        }
        super().__init__(total=total, desc=what, unit="B", unit_scale=True, **(line if self._is_log else {}))
        self._last_line = time.monotonic()

    def advance(self, amount: int, is_old: bool = False) -> None:
        """Adds processed bytes and updates the display; bytes from an earlier run do not count toward speed."""
        if is_old:
            self.initial += amount
        self.update(amount)
        if self._is_log and time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(self, file=sys.stderr, flush=True)


_UNITS = (("year", 365 * DAY), ("month", 30 * DAY), ("day", DAY), ("hour", 3600), ("minute", 60), ("second", 1))


def about(seconds: float) -> str:
    """Returns a forecast in one unit, to at least two digits: `about 4.6 minutes`."""
    unit, size = next((unit, size) for unit, size in _UNITS if seconds >= 2 * size or size == 1)
    return f"about {counted(max(1, round(seconds / size, 1 if seconds < 10 * size else None)), unit)}"


def duration(seconds: float) -> str:
    """Returns a duration as h:mm:ss, or in days if it is longer than one."""
    if seconds >= DAY:
        return f"{seconds / DAY:.1f} days"
    minutes, seconds_left = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds_left:02d}"


def waited_for(whom: Callable[[], str], make: Callable[[], Made]) -> Made:
    """Returns the result of `make`, which waits for others; prints for `whom` if that takes over `SILENCE` seconds.

    `make` runs in another thread, because Ctrl-C does not interrupt a wait inside a library.
    """
    with ThreadPool(1) as pool:
        made = pool.apply_async(make)
        made.wait(SILENCE)
        if not made.ready():
            print(f"waiting for {whom()}", file=sys.stderr, flush=True)
        return made.get()
