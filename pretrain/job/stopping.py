"""Requests to stop a run: a signal that reaches this rank, or a file named `stop` in the run folder."""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from foundation.command_line import printable

EXIT_STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: stopped on request with a checkpoint written; batch systems requeue on it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Remembers the first signal while it is entered; a second SIGINT acts as usual, for a user who will not wait."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "stop"
        self._signalled = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        name = printable(f"rank {os.environ.get('RANK', 0)} on {socket.gethostname()}")
        with suppress(OSError, RuntimeError):  # nobody reads it any more; or the signal came in the middle of a print
            print(f"{name}: {signal.Signals(number).name} received; saving and stopping", flush=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __bool__(self) -> bool:
        return self._signalled or self._file.exists()

    def withdraw(self, say: Callable[[str], None]) -> None:
        """Removes the file, which is for one run: the one it stops, or the one that ends before it could."""
        try:
            self._file.unlink()
            say(f"{self._file} is removed: a stop is asked for once")
        except FileNotFoundError:
            pass
        except OSError as error:
            say(
                f"WARNING: {self._file} cannot be removed ({error.strerror}); remove it, or it stops the next start too"
            )
