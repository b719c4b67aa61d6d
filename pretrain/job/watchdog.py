"""The watchdog: ends a rank that hangs or whose job has failed; no rank outlives its job or waits for a dead one.

Neither gloo, NCCL nor DeepSpeed bounds the wait in a training collective (docs/evidence/faults_machines.md), so each
rank runs two threads. The first exchanges messages every second through the store that started the job: rank 0 listens
to all ranks, the others to rank 0. The second checks the time, and ends this process when

- the job has failed: a rank raised an error, or was not heard from for `silence` seconds;
- there was no progress for `hang_timeout` seconds (three times that until the first step has ended);
- the launcher exited, and this rank has not saved and stopped within `silence` seconds.

If the threads themselves cannot run because something holds Python's GIL, a system alarm ends the process.
"""

import contextlib
import logging
import math
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from torch.distributed import DistError

from foundation.command_line import EXIT_BAD_USAGE, EXIT_FAILED, exit_code, printable
from pretrain.job.end_record import EndRecord, Reason, now, write_record
from pretrain.job.launcher import is_alive, launchers
from pretrain.job.meeting import BEAT, QUIET, Meeting, RankState, say
from pretrain.job.processes import World
from pretrain.job.rank_log import last_lines

LONGEST_SILENCE = 60.0
"""Seconds after which a silent rank is given up; no operation in a step blocks Python's other threads this long."""
START_FACTOR = 3
"""Factor on the timeout of the first step, which includes building the model, connecting and compiling kernels."""
LAST_LINES = 5
"""Lines shown from the end of a lost rank's log."""
STACK_LINES = 6
"""Innermost calls shown when a rank ends."""


class Watchdog:
    """Watches this rank and the others during its `with` block; the training loop reports `progress`."""

    def __init__(self, world: World, hang_timeout: float, folder: Path) -> None:
        """`hang_timeout`: seconds without progress after which the job ends; `folder`: the run's, with its logs."""
        self.hang_timeout, self.silence = hang_timeout, min(LONGEST_SILENCE, hang_timeout)
        self.launcher_gone = False
        """True once the launcher has exited; the training loop then saves and stops."""
        self._world, self._folder, self._record = world, folder, EndRecord.of(world.rank)
        self._state = RankState(self._record.name, "the start")
        self._allowed = START_FACTOR * hang_timeout
        self._deadline = time.monotonic() + self._allowed
        self._meeting: Meeting | None = None
        self._launchers = launchers() if "RANK" in os.environ else []
        self._orphaned_at = float("inf")
        self._main_thread, self._over = threading.get_ident(), threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> Self:
        """Starts the threads. Collective."""
        self._watching.start()
        if self._world.world_size > 1:
            key = self._world.share(secrets.token_hex() if self._world.is_first else None)
            self._meeting = Meeting(self._world, bytes.fromhex(key))
            threading.Thread(target=self._meet, args=(self._meeting,), daemon=True, name="meeting").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the threads. The traceback of a lost connection goes to the log only: it shows where this rank waited
        for a dead one, and every other rank has the same.

        Raises:
            SystemExit: instead of `error`, if it is a lost connection.
        """
        lost = error is not None and not isinstance(error, SystemExit) and self._explain(error)
        self._over.set()
        self._watching.join(2 * BEAT)  # or it might set the alarm once more, which would end a process that goes on
        signal.alarm(0)
        if lost:
            logging.getLogger(__name__).warning("".join(traceback.format_exception(error)))
            raise SystemExit(EXIT_FAILED) from None

    def progress(self, where: str) -> None:
        """Reports progress up to `where`; restarts the timeout, which is longer until the first step has ended."""
        self._state = RankState(self._state.name, where)
        self._deadline = time.monotonic() + self._allowed

    def waits(self, where: str) -> None:
        """Reports that this rank waits for something outside the job: restarts the timeout of every rank."""
        self.progress(where)
        if self._meeting:
            self._meeting.waits = True

    def step_done(self, step: int) -> None:
        """Reports the end of a step."""
        self._allowed, self._record = self.hang_timeout, self._record._replace(step=step)
        self.progress(f"step {step}")

    def record(self, reason: Reason, code: int, sentence: str) -> None:
        """Writes the record of why this rank is ending to the run folder; a failed write is ignored."""
        ended = self._record._replace(time=now(), reason=reason, exit_code=code, sentence=printable(sentence))
        with contextlib.suppress(OSError):
            write_record(self._folder, ended)

    def _explain(self, error: BaseException) -> bool:
        """Reports why this rank fails with `error`; for a lost connection, names the rank that is gone and returns
        true.
        """
        what = traceback.format_exception_only(error)[-1].strip()
        code = exit_code(error)
        refused = code == EXIT_BAD_USAGE
        reason: Reason = "refused" if refused else "error"
        sentence = f"failed after {self._state.where}: {what}"
        if self._meeting:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher sends it to all ranks when the first one ends
            if isinstance(error, DistError) or "gloo/transport" in what:  # gloo's errors have no type of their own
                names = ", ".join(self._meeting.known[rank].name for rank in self._meeting.gone())
                reason, sentence = "lost", f"lost the connection to {names or 'another rank'}; {sentence}"
            self._over.set()  # or the other thread would take this failure for another rank's
        said = f"{self._state.name} {sentence}" if self._meeting and not refused else ""
        self._account(reason, code, sentence, said)
        return reason == "lost"

    def _account(self, reason: Reason, code: int, sentence: str, said: str) -> None:
        """Tells the other ranks (if reachable), the user and the run folder why this rank ends."""
        if self._meeting and reason != "told":
            words = f"{self._state.name}: {sentence}", code
            telling = threading.Thread(target=self._meeting.tell, args=words, daemon=True)
            telling.start()
            telling.join(2 * BEAT)
        if said:
            say(said)
        self.record(reason, code, sentence)
        if self._meeting:
            time.sleep(2 * BEAT)  # time for the others to read it: the store ends with rank 0

    def _meet(self, meeting: Meeting) -> None:
        while True:
            with contextlib.suppress(DistError):  # the other thread notices when answers stop
                if meeting.hold(self._state._replace(place=self._place())):
                    self._deadline = time.monotonic() + self._allowed
            if self._over.wait(BEAT):
                return

    def _watch(self) -> None:
        patience = 0.0 if self._world.is_first else QUIET  # rank 0 ends first: it knows where all ranks are
        while not self._over.wait(BEAT):
            signal.alarm(math.ceil(2 * self.silence))  # ends the process if this thread does not come back here
            now = time.monotonic()
            if self._meeting and self._meeting.failure:
                self._end("told", *self._meeting.failure)
            if self._meeting and (lost := self._meeting.silent_since(now - self.silence)):
                self._end("lost", f"not heard from for {self.silence:g} s: {self._meeting.states(lost)}", named=lost)
            if now > self._deadline + patience:
                place = self._place()
                sentence = f"no progress for {self._allowed:g} s after {self._state.where}, at {place}"
                if self._meeting and (elsewhere := self._meeting.elsewhere(place)):
                    self._end("hang", f"{sentence}; elsewhere: {self._meeting.states(elsewhere)}", named=elsewhere)
                self._end("hang", sentence)
            if not self.launcher_gone and not all(map(is_alive, self._launchers)):
                self.launcher_gone, self._orphaned_at = True, now
                say(f"{self._state.name}: its launcher has exited; saving and stopping")
            if now > self._orphaned_at + self.silence:
                self._end("launcher", f"its launcher exited {self.silence:g} s ago, and it could not save and stop")

    def _place(self) -> str:
        """Returns file and line of the innermost Python frame of the main thread."""
        frame = sys._current_frames().get(self._main_thread)
        return f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}" if frame else "its end"

    def _end(self, reason: Reason, sentence: str, code: int = EXIT_FAILED, named: Sequence[int] = ()) -> NoReturn:
        """Ends this process and reports why, with its stack and the ends of the logs of the ranks `named`.

        If another rank reported the failure, the stack goes to the log only: thousands of ranks may end so at once.
        """
        stack = "".join(traceback.format_stack(sys._current_frames().get(self._main_thread))[-STACK_LINES:])
        where = f"{self._state.name} is, after {self._state.where}, at\n{stack}"
        said = f"{self._state.name} ends: {sentence}"
        if reason == "told":
            logging.getLogger(__name__).warning(where)
        else:
            logs = {rank: last_lines(self._folder, rank, LAST_LINES) for rank in named}
            ends = [f"the end of rank {rank}'s log:" + "\n    ".join(["", *log]) for rank, log in logs.items() if log]
            said = "\n".join([said, *ends, where])
        self._account(reason, code, sentence, said)
        os._exit(code)
