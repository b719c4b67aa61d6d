"""How far a long command is: a bar with the time left on a terminal, a plain line now and then in a log."""

import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts bytes done of `total`; use as a context manager."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._bar = tqdm(total=total, desc=what, unit="B", unit_scale=True) if sys.stderr.isatty() else None
        self._done = 0
        self._skipped = 0
        self._start = self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def skip(self, amount: int) -> None:
        """Counts what an earlier run has done: it says nothing about the speed of this one."""
        self._skipped += amount
        if self._bar is not None:
            self._bar.initial += amount
            self._bar.update(amount)

    def advance(self, amount: int) -> None:
        """Counts what was just done, and says so when it is time."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            speed = self._done / (time.monotonic() - self._start)
            done = self._done + self._skipped
            left = duration((self._total - done) / speed) if speed else "?"
            line = f"{self._what}: {done / max(1, self._total):.0%}, {speed / 1e6:.1f} MB/s, {left} left"
            print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as h:mm:ss."""
    minutes, seconds_left = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds_left:02d}"
