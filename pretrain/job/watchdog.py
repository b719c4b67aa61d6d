"""No rank outlives its job, and no job waits for a rank that is gone.

Neither gloo, NCCL nor DeepSpeed bounds the wait in a training collective (docs/operations.md), so each rank has two
threads of its own. One meets the other ranks every second at the store that started the job: rank 0 listens for all,
the others for rank 0. The other compares clocks, and ends this process when

- the job has failed: a rank raised an error, or was not heard of for `silence` seconds;
- nothing moved for `hang_timeout` seconds (three times that until the first step has ended);
- the launcher is gone and the stop that follows from it is not done within `silence` seconds.

Should these threads not run themselves, because something holds Python's lock, the system's alarm ends the process.
"""

import contextlib
import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from torch.distributed import DistError

from foundation.command_line import EXIT_BAD_USAGE
from foundation.config import ConfigError
from pretrain.job.launcher import launchers
from pretrain.job.meeting import Meeting, RankState, say
from pretrain.job.processes import World
from pretrain.job.rank_log import last_lines

BEAT = 1.0
"""Seconds between two looks at the others and at the clock."""
LONGEST_SILENCE = 60.0
"""Seconds after which a rank that was not heard of is lost; nothing in a step keeps Python's other threads so long."""
QUIET = 5 * BEAT
"""A rank that was not heard of for so long is named, whatever else ends the job."""
START_FACTOR = 3
"""The first step also builds the model, connects the ranks and compiles kernels."""
EXIT_FAILED = 1
WAITING = "distributed_c10d.py"
"""Where a rank stands that waits for others, as far as Python knows: what a GPU waits for it does not."""
LAST_LINES = 5
"""Of the log of a lost rank."""
STACK_LINES = 6
"""Innermost calls shown of a rank that stands still."""


class Watchdog:
    """Watches this rank and the job's others while its `with` block lasts; the training loop reports its `progress`."""

    def __init__(self, world: World, hang_timeout: float, folder: Path) -> None:
        """`hang_timeout`: seconds without progress after which the job ends; `folder`: the run's, with its logs."""
        self._folder = folder
        self.hang_timeout, self.silence = hang_timeout, min(LONGEST_SILENCE, hang_timeout)
        self.launcher_gone = False
        """Asks for a stop: what started this rank has ended."""
        self._state = RankState(f"rank {world.rank} on {socket.gethostname()}", "the start")
        self._allowed = START_FACTOR * hang_timeout
        self._deadline = time.monotonic() + self._allowed
        self._patience = 0.0 if world.is_first else 3 * BEAT  # the first rank knows of all where they stand
        self._world = world
        self._meeting: Meeting | None = None
        self._launchers = launchers() if "RANK" in os.environ else []
        self._orphaned_at = float("inf")
        self._main_thread, self._over = threading.get_ident(), threading.Event()

    def __enter__(self) -> Self:
        """Collective."""
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()
        if self._world.world_size > 1:
            key = self._world.share(secrets.token_hex() if self._world.is_first else None)
            self._meeting = Meeting(self._world, bytes.fromhex(key))
            threading.Thread(target=self._meet, daemon=True, name="meeting").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        signal.alarm(0)
        if self._meeting and error is not None:
            what = traceback.format_exception_only(error)[-1].strip()
            code = EXIT_BAD_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
            account = f"{self._state.name} failed after {self._state.where}: {what}"
            if code == EXIT_FAILED:
                say(account)  # at once: its launcher may end it before the traceback is printed
            self._tell(account, code)
            time.sleep(2 * BEAT)  # for the others to hear it: the store ends with rank 0

    def progress(self, where: str) -> None:
        """The training loop has done this much, and has `hang_timeout` seconds for what follows; more at first."""
        self._state = RankState(self._state.name, where)
        self._deadline = time.monotonic() + self._allowed

    def step_done(self, step: int) -> None:
        """A step has ended."""
        self._allowed = self.hang_timeout
        self.progress(f"step {step}")

    def _meet(self) -> None:
        assert self._meeting is not None
        while True:
            with contextlib.suppress(DistError):  # no answer is what the other thread waits for
                self._meeting.hold(self._state._replace(place=self._place()))
            if self._over.wait(BEAT):
                return

    def _watch(self) -> None:
        while not self._over.wait(BEAT):
            signal.alarm(math.ceil(2 * self.silence))  # of a thread that does not come back here
            now = time.monotonic()
            if self._meeting and self._meeting.failure:
                self._end(*self._meeting.failure)
            if self._meeting and (lost := self._meeting.silent_since(now - self.silence)):
                self._fail(f"not heard of for {self.silence:g} s: {', '.join(map(self._account, lost))}")
            if now > self._deadline + self._patience:
                self._fail(f"nothing moved for {self._allowed:g} s after {self._state.where}{self._suspects(now)}")
            if not self.launcher_gone and not all(process.is_alive for process in self._launchers):
                self.launcher_gone, self._orphaned_at = True, now
                say(f"{self._state.name}: what launched it has ended; saving and stopping")
            if now > self._orphaned_at + self.silence:
                self._fail(f"what launched it has ended {self.silence:g} s ago, and it could not save and stop since")

    def _suspects(self, now: float) -> str:
        """The ranks that this one may be waiting for."""
        if not self._meeting:
            return ""
        silent, place = self._meeting.silent_since(now - QUIET), self._place()
        elsewhere = [rank for rank in self._meeting.elsewhere(place) if rank not in silent]
        wait_for_us = [rank for rank in elsewhere if WAITING in self._meeting.known[rank].place]
        if WAITING not in place and wait_for_us and wait_for_us == elsewhere and not silent:
            return f"; {self._state.name} itself is waited for, by {', '.join(map(self._account, elsewhere))}"
        found = {"not heard of lately": silent, "standing elsewhere": elsewhere}
        return "".join(f"; {what}: {', '.join(map(self._account, ranks))}" for what, ranks in found.items() if ranks)

    def _account(self, rank: int) -> str:
        """Another rank, how far it has come, where it was when last heard of, and its last words."""
        assert self._meeting is not None
        state = self._meeting.known[rank]
        stand = ", ".join(filter(None, (f"after {state.where}", state.place)))
        words = "".join(f"\n    {line}" for line in last_lines(self._folder, rank, LAST_LINES))
        return f"{state.name} ({stand}){words and '; the end of its log:'}{words}"

    def _place(self) -> str:
        """Where the main thread is: the innermost line of Python."""
        frame = sys._current_frames().get(self._main_thread)
        return f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}" if frame else "its end"

    def _fail(self, reason: str) -> NoReturn:
        say(f"{self._state.name} ends: {reason}\n{self._stand()}")
        self._tell(f"{self._state.name}: {reason}", EXIT_FAILED)
        if self._meeting:
            time.sleep(2 * BEAT)  # for the others to hear it: the store ends with rank 0
        os._exit(EXIT_FAILED)

    def _tell(self, reason: str, code: int) -> None:
        """Tells the other ranks, as far as they can be reached."""
        if self._meeting:
            telling = threading.Thread(target=self._meeting.tell, args=(reason, code), daemon=True)
            telling.start()
            telling.join(2 * BEAT)

    def _end(self, reason: str, code: int) -> NoReturn:
        """Where another rank has failed this one's stack is in its log alone: thousands may end so at once."""
        say(f"{self._state.name} ends: {reason}")
        logging.getLogger(__name__).warning(self._stand())
        os._exit(code)

    def _stand(self) -> str:
        """How far this rank has come, and where it is."""
        frame = sys._current_frames().get(self._main_thread)
        stack = "".join(traceback.format_stack(frame)[-STACK_LINES:])
        return f"{self._state.name} stands, after {self._state.where}, at\n{stack}"
