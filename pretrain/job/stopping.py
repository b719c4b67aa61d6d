"""Requests to stop a run: a signal to this rank, or a file named `stop` in the run folder."""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from electra_sampler.foundation.command_line import printable

EXIT_STOPPED = 75
"""Exit code of a run stopped on request, with a checkpoint: EX_TEMPFAIL of sysexits.h; batch systems requeue on it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """A context manager that catches stop signals; it is true once a signal has arrived or the `stop` file exists.

    After the first signal, SIGINT interrupts as usual, for a user who will not wait.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "stop"
        self._signaled = False

    def __enter__(self) -> Self:
        self._before: dict[signal.Signals, Any] = {one: signal.signal(one, self._remember) for one in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Restores the signals, except SIGTERM after an error: a launcher sends it to all ranks when the first one
        ends, and must not end this one before it has said why.
        """
        for number, handler in self._before.items():
            if kind is None or number != signal.SIGTERM:
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._signaled = True
        name = printable(f"rank {os.environ.get('RANK', 0)} on {socket.gethostname()}")
        with suppress(OSError, RuntimeError):  # the output is closed, or the signal interrupted another print
            print(f"{name}: {signal.Signals(number).name} received; saving and stopping", flush=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __bool__(self) -> bool:
        return self._signaled or os.path.exists(self._file)  # noqa: PTH110  # false, too, where stat fails

    def withdraw(self, say: Callable[[str], None]) -> None:
        """Removes the `stop` file, so that it does not stop the next start; `say` prints a line about that."""
        with suppress(FileNotFoundError):
            self._file.unlink()
            say(f"removed {self._file}, so that it does not stop the next start")
