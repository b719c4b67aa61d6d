"""How far a long command is: a bar with the time left on a terminal, a plain line now and then in a log."""

import io
import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType

from tqdm import tqdm

_LINE = "{desc}: {percentage:.0f}%, {rate_fmt}, {remaining} left"
_SECONDS_BETWEEN_LINES = 30.0
DAY = 86_400
"""Seconds."""


class Progress(AbstractContextManager["Progress"]):
    """Counts bytes done of `total`; use as a context manager."""

    def __init__(self, total: int, what: str) -> None:
        self._is_log = not sys.stderr.isatty()
        line = {"file": io.StringIO(), "bar_format": _LINE, "smoothing": 0, "mininterval": _SECONDS_BETWEEN_LINES}
        self._bar = tqdm(total=total, desc=what, unit="B", unit_scale=True, **(line if self._is_log else {}))
        self._last_line = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def advance(self, amount: int, is_old: bool = False) -> None:
        """Counts what is done, and says so when it is time; of the speed what an earlier run did says nothing."""
        if is_old:
            self._bar.initial += amount
        self._bar.update(amount)
        if self._is_log and time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(self._bar, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as h:mm:ss."""
    minutes, seconds_left = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds_left:02d}"
