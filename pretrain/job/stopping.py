"""Requests to stop a run: a signal that reaches this rank, or a file named `stop` in the run folder."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from foundation.command_line import printable

EXIT_STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: stopped on request with a checkpoint written; batch systems requeue on it."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Remembers the first signal while it is entered; a second SIGINT acts as usual, for a user who will not wait.

    A thread says at once which signal has come: the main thread may stand in a collective whose end it does not live
    to see, and then the log would not tell this rank from one that was killed.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "stop"
        self._signalled = False
        self._before: dict[signal.Signals, Any] = {}
        self._wake: socket.socket
        self._saying: threading.Thread

    def __enter__(self) -> Self:
        heard, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._wake = wake
        self._saying = threading.Thread(target=self._say, args=(heard,), daemon=True, name="signals")
        self._saying.start()
        self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self._wake.close()
        self._saying.join()

    @staticmethod
    def _say(heard: socket.socket) -> None:
        with heard:
            while numbers := heard.recv(1):
                if (number := signal.Signals(numbers[0])) in SIGNALS:
                    name = printable(f"rank {os.environ.get('RANK', 0)} on {socket.gethostname()}")
                    with contextlib.suppress(OSError):  # with the launcher its end of our output may be gone
                        print(f"{name}: {number.name} received; saving and stopping", flush=True)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __bool__(self) -> bool:
        return self._signalled or self._file.exists()

    def withdraw(self, say: Callable[[str], None]) -> None:
        """Removes the file, which asks one run alone: the one it stops, or the one that ends before it could."""
        try:
            self._file.unlink()
            say(f"{self._file} is removed: a stop is asked for once")
        except FileNotFoundError:
            pass
        except OSError as error:
            say(
                f"WARNING: {self._file} cannot be removed ({error.strerror}); remove it, or it stops the next start too"
            )
