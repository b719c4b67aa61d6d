"""Messages between the ranks of a job through its key-value store, outside the collectives: progress and failures.

The store is torch's: anyone who can reach its port can read, write, list and delete everything in it
(docs/reference/network.md). So each message is signed with a key that the ranks exchange over their own connections
and never write to the store; unsigned messages are ignored. This prevents forged messages, but not the deletion of
real ones.
"""

import contextlib
import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistError

from pretrain.job.processes import World, attempt
from pretrain.job.rank_log import printable_lines

BEAT = 1.0
"""Seconds between exchanges with the other ranks."""
QUIET = 3 * BEAT
"""Seconds of silence after which a rank may be gone: its message takes one beat to write and one to read."""
MOST_NAMED = 8
FAILURE = "failure"
"""Key under which the first rank that fails stores the reason."""
WAITING = "waiting"
"""Key under which a rank that waits for something outside the job stores its number and its clock."""
SIGNATURE = 2 * hashlib.sha256().digest_size
"""Length of the hexadecimal signature before each message."""
ANSWER = timedelta(seconds=2)
LONGEST_REASON = 20_000  # characters


class RankState(NamedTuple):
    """The progress of a rank."""

    name: str
    where: str
    """The last progress it reported, such as "step 12"."""
    place: str = ""
    """The line of code it is at."""


class Meeting:
    """One rank's access to the store, over its own connection."""

    def __init__(self, world: World, key: bytes) -> None:
        """`key` signs messages; each start of the job has its own, so messages of an earlier start are ignored."""
        self.failure: tuple[str, int] | None = None
        """Why the job ends, and its exit code; `None` while it runs."""
        self.waits = False
        """True if this rank has waited for something outside the job since the last exchange."""
        self._waiting: list[Any] | None = None
        self._rank, self._key = world.rank, key
        self._everyone = [rank for rank in range(world.world_size) if rank != world.rank]
        self._others = self._everyone if world.is_first else [0]
        self.known = {rank: RankState(f"rank {rank}", "its start", "an unknown line") for rank in self._everyone}
        self._heard = dict.fromkeys(self._everyone, time.monotonic())
        self._last = dict.fromkeys(self._everyone, 0.0)
        self._store: Store | None = None
        self._warned = False

    def _connect(self) -> Store:
        if self._store is None:
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = TCPStore(address, port, is_master=False, wait_for_workers=False)
            store.set_timeout(ANSWER)  # a key may be deleted between `check` and `get`, which would wait for it
            self._store = PrefixStore(f"watchdog/{attempt()}", store)
        return self._store

    def hold(self, state: RankState) -> bool:
        """Writes this rank's progress; reads the others' (rank 0 all, the rest rank 0's) and any failure of the job.

        Returns true if some rank has waited for something outside the job since the last exchange.
        """
        self._write(str(self._rank), [time.monotonic(), *state])
        for rank in self._others:
            if (word := self._read(str(rank))) and word[0] > self._last[rank]:
                self._last[rank], self._heard[rank] = word[0], time.monotonic()
                self.known[rank] = RankState(*word[1:])
        if failure := self._read(FAILURE):
            self.failure = failure[0], failure[1]
        if self.waits:
            self.waits = False
            self._write(WAITING, [self._rank, time.monotonic()])
        before, self._waiting = self._waiting, self._read(WAITING)
        return self._waiting != before

    def tell(self, reason: str, code: int) -> None:
        """Tells every rank why the job ends; only the first reason is kept."""
        with contextlib.suppress(DistError):
            if self._read(FAILURE) is None:
                self._write(FAILURE, [printable_lines(reason[:LONGEST_REASON]), code])

    def _write(self, name: str, word: list[Any]) -> None:
        text = json.dumps(word)
        self._connect().set(name, self._sign(name, text.encode()) + text)

    def _read(self, name: str) -> list[Any] | None:
        """Returns the message stored under `name`; `None` if there is none or its signature is wrong."""
        store = self._connect()
        if not store.check([name]):
            return None
        written = store.get(name)
        signature, text = written[:SIGNATURE], written[SIGNATURE:]
        if not hmac.compare_digest(signature, self._sign(name, text).encode()):
            self._warn()
            return None
        word: list[Any] = json.loads(text)
        return word

    def _sign(self, name: str, text: bytes) -> str:
        return hmac.new(self._key, name.encode() + b"\0" + text, "sha256").hexdigest()

    def _warn(self) -> None:
        """Warns of messages with a wrong signature, only once, however many there are."""
        if not self._warned:
            self._warned = True
            point = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            say(
                f"WARNING: somebody else writes to this job's store at {point}; it is ignored, and training"
                " continues; see docs/reference/network.md"
            )

    def silent_since(self, moment: float) -> list[int]:
        """Returns the ranks last heard from before `moment`, at most `MOST_NAMED`."""
        return [rank for rank in self._others if self._heard[rank] < moment][:MOST_NAMED]

    def elsewhere(self, place: str) -> list[int]:
        """Returns the ranks at another line of code than `place`, or silent lately; at most `MOST_NAMED`."""
        silent = self.silent_since(time.monotonic() - QUIET)
        return [rank for rank in self._others if rank in silent or self.known[rank].place != place][:MOST_NAMED]

    def states(self, ranks: Sequence[int]) -> str:
        """Describes the last known progress and line of code of these ranks, for a message."""
        states = map(self.known.__getitem__, ranks)
        return ", ".join(f"{state.name} (after {state.where}, at {state.place})" for state in states)

    def gone(self) -> list[int]:
        """Listens to all ranks for a few seconds; returns those that are silent. Called after a connection failed."""
        self._heard, self._others = dict.fromkeys(self._everyone, time.monotonic()), self._everyone
        time.sleep(QUIET + BEAT)
        silent = self.silent_since(time.monotonic() - QUIET)
        return [0] if 0 in silent else silent  # without rank 0 there is no store, and all ranks seem silent


def say(text: str) -> None:
    """Prints to stderr, which the launcher shows; ignores a closed stream."""
    with contextlib.suppress(OSError):  # the launcher, which reads the output, may have ended
        print(text, file=sys.stderr, flush=True)
