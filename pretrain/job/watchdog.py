"""The watchdog: ends a rank that hangs or whose job has failed, so that none outlives its job or waits for a dead rank.

Neither gloo, NCCL nor DeepSpeed bounds the wait in a training collective (docs/evidence/faults.md). So each
rank runs two threads. One exchanges progress with the other ranks every second, through the store that started the job.
The other ends this process when

- a rank was not heard from for `silence` seconds: it has ended, or its host is gone;
- there was no progress for `hang_timeout` seconds (three times that until the first step has ended);
- the launcher exited, and this rank has not saved and stopped within `silence` seconds.

If the threads cannot run because something holds Python's GIL, a system alarm ends the process.
"""

import contextlib
import json
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, Self

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistError
from torch.distributed.distributed_c10d import _get_default_store

from electra_sampler.foundation.command_line import EXIT_BAD_USAGE, EXIT_FAILED, exit_code, printable
from pretrain.job.launcher import is_alive, launchers
from pretrain.job.processes import World
from pretrain.job.rank_log import EndRecord, Reason, now, write_record

BEAT = 1.0
"""Seconds between exchanges with the other ranks."""
QUIET = 3 * BEAT
"""Seconds of silence after which a rank may be gone: its message takes one beat to write and one to read."""
LONGEST_SILENCE = 60.0
"""Seconds after which a silent rank counts as dead; no operation in a step blocks Python's other threads this long."""
START_FACTOR = 3
"""Factor on the timeout of the first step, which includes building the model, connecting and compiling kernels."""
MOST_NAMED = 8


class Peers:
    """The other ranks, as this one sees them over its own connection to the job's store.

    Rank 0 watches all ranks, the others watch rank 0. The store has no authentication (docs/reference/network.md).
    """

    def __init__(self, world: World) -> None:
        self.waits = 0
        """How often this rank has waited for something outside the job since the last exchange."""
        self._rank, self._waits = world.rank, 0
        self._everyone = [rank for rank in range(world.world_size) if rank != world.rank]
        self._watched = self._everyone if world.is_first else [0]
        self._known = {rank: ["", "", f"rank {rank}, not heard from yet"] for rank in self._everyone}
        self._heard = dict.fromkeys(self._everyone, time.monotonic())
        self._store = PrefixStore("watchdog", _get_default_store().clone())  # type: ignore[attr-defined]  # new in 2.9
        self._store.set_timeout(timedelta(seconds=2))

    def exchange(self, place: str, state: str) -> bool:
        """Publishes the line of code and the state of this rank, and reads those of the watched ranks.

        Returns true if some rank has waited for something outside the job since the last exchange.
        """
        self._store.set(str(self._rank), json.dumps([time.monotonic(), place, state]))
        for rank in self._watched:
            if (
                self._store.check([str(rank)])
                and (known := json.loads(self._store.get(str(rank)))) != self._known[rank]
            ):
                self._known[rank], self._heard[rank] = known, time.monotonic()
        waits, self.waits = self.waits, 0
        before, self._waits = self._waits, self._store.add("waits", waits)
        return self._waits != before

    def absent(self, seconds: float, place: str | None = None) -> list[int]:
        """Returns the watched ranks not heard from for `seconds` and, given `place`, those at another line of code."""
        since, known = time.monotonic() - seconds, self._known
        return [rank for rank in self._watched if self._heard[rank] < since or place not in (None, known[rank][1])]

    def describe(self, ranks: Sequence[int]) -> str:
        """Describes the last known state of these ranks; of many, only the first `MOST_NAMED`."""
        return ", ".join(self._known[rank][2] for rank in ranks[:MOST_NAMED])

    def gone(self) -> str:
        """After a failed connection, waits a few seconds for messages from all ranks; describes the silent ones."""
        self._heard, self._watched = dict.fromkeys(self._everyone, time.monotonic()), self._everyone
        time.sleep(QUIET + BEAT)
        silent = self.absent(QUIET)  # without rank 0 there is no store, and all ranks seem silent
        return self.describe([0] if 0 in silent else silent) or "another rank"


class Watchdog:
    """Watches this rank and the others during its `with` block; the training loop reports `progress`."""

    def __init__(self, world: World, hang_timeout: float, folder: Path) -> None:
        """`hang_timeout`: seconds without progress after which the job ends; `folder`: the run's, with its logs."""
        self.hang_timeout, self.silence = hang_timeout, min(LONGEST_SILENCE, hang_timeout)
        self.launcher_gone = False
        """True once the launcher has exited; the training loop then saves and stops."""
        self._world, self._folder, self._record = world, folder, EndRecord.of(world.rank)
        self._where, self._allowed = "the start", START_FACTOR * hang_timeout
        self._deadline, self._orphan_deadline = time.monotonic() + self._allowed, math.inf
        self._peers: Peers | None = None
        self._launchers = launchers()
        self._main_thread, self._over = threading.get_ident(), threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> Self:
        """Starts the threads."""
        self._watching.start()
        if self._world.world_size > 1:
            self._peers = Peers(self._world)
            threading.Thread(target=self._exchange, args=(self._peers,), daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Ends the threads.

        Raises:
            SystemExit: instead of `error`, if it is a lost connection.
        """
        try:
            if error is not None and not isinstance(error, SystemExit):
                self._explain(error)
        finally:
            self._over.set()
            self._watching.join(2 * BEAT)  # or it might set the alarm once more and end a process that continues
            signal.alarm(0)

    def progress(self, where: str) -> None:
        """Restarts this rank's timeout; `where` says what it has just finished, such as "step 5"."""
        self._where, self._deadline = where, time.monotonic() + self._allowed

    def waits(self, where: str) -> None:
        """Reports that this rank waits for something outside the job; restarts the timeout of every rank."""
        self.progress(where)
        if self._peers:
            self._peers.waits += 1

    def step_done(self, step: int) -> None:
        """Reports the end of a step."""
        self._allowed, self._record = self.hang_timeout, self._record._replace(step=step)
        self.progress(f"step {step}")

    def record(self, reason: Reason, code: int, sentence: str) -> None:
        """Writes the record of why this rank is ending to the run folder; a failed write is ignored."""
        end = self._record._replace(time=now(), reason=reason, exit_code=code, sentence=printable(sentence))
        with contextlib.suppress(OSError):
            write_record(self._folder, end)

    def _explain(self, error: BaseException) -> None:
        """Prints and records why this rank fails with `error`; if it lost a connection, also which rank is gone.

        The traceback of a lost connection goes to the log only, as every rank has the same one.
        """
        what, code = traceback.format_exception_only(error)[-1].strip(), exit_code(error)
        sentence, lost = f"failed after {self._where}: {what}", False
        if self._peers:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher sends it to all ranks when the first one ends
            lost = isinstance(error, DistError) or "gloo/transport" in what  # gloo's errors have no type of their own
            if lost:
                sentence = f"lost the connection to {self._peers.gone()}; {sentence}"
            if code != EXIT_BAD_USAGE:
                _say(f"{self._record.name} {sentence}")
        self.record("lost" if lost else "error", code, sentence)
        if lost:
            logging.getLogger(__name__).warning("".join(traceback.format_exception(error)))
            raise SystemExit(EXIT_FAILED) from None

    def _exchange(self, peers: Peers) -> None:
        while True:
            with contextlib.suppress(DistError):  # the other thread notices when answers stop
                place = self._place()
                if peers.exchange(place, f"{self._record.name} (after {self._where}, at {place})"):
                    self._deadline = time.monotonic() + self._allowed
            if self._over.wait(BEAT):
                return

    def _watch(self) -> None:
        patience = 0.0 if self._world.is_first else QUIET  # rank 0 ends first: it knows where all ranks are
        while not self._over.wait(BEAT):
            signal.alarm(math.ceil(2 * self.silence))  # ends the process if this thread does not come back here
            now = time.monotonic()
            if self._peers and (silent := self._peers.absent(self.silence)):
                self._end("lost", f"ranks not heard from for {self.silence:g} s: {self._peers.describe(silent)}")
            if now > self._deadline + patience:
                place = self._place()
                sentence = f"no progress for {self._allowed:g} s after {self._where}, at {place}"
                if self._peers and (elsewhere := self._peers.absent(QUIET, place)):
                    sentence += f"; other ranks are elsewhere: {self._peers.describe(elsewhere)}"
                self._end("hang", sentence)
            if not self.launcher_gone and not all(map(is_alive, self._launchers)):
                self.launcher_gone, self._orphan_deadline = True, now + self.silence
                _say(f"{self._record.name}: its launcher has exited; saving and stopping")
            if now > self._orphan_deadline:
                self._end("launcher", f"its launcher exited {self.silence:g} s ago, and it could not save and stop")

    def _place(self) -> str:
        """Returns file and line of the innermost Python frame of the main thread."""
        frame = sys._current_frames().get(self._main_thread)
        return f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}" if frame else "its end"

    def _end(self, reason: Reason, sentence: str) -> NoReturn:
        """Prints and records why this process ends, with its innermost calls; ends it."""
        stack = "".join(traceback.format_stack(sys._current_frames().get(self._main_thread), limit=6))
        _say(f"{self._record.name} ends: {sentence}\n{self._record.name} is, after {self._where}, at\n{stack}")
        self.record(reason, EXIT_FAILED, sentence)
        os._exit(EXIT_FAILED)


def _say(text: str) -> None:
    """Prints to stderr, which the launcher shows; ignores a closed stream."""
    with contextlib.suppress(OSError):  # the launcher, which reads the output, may have ended
        print(text, file=sys.stderr, flush=True)
