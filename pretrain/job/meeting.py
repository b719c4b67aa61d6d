"""Messages between the ranks of a job at its store, beside the collectives: how far each has come, why it ends.

The store is torch's: whoever reaches its port can read, write, list and delete everything in it
(docs/reference/network.md). So each message is signed with a key that the ranks share over the connections between
them and never write there; messages without the signature are ignored. That keeps strangers from speaking for a rank,
not from silencing one.
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
"""Seconds between two looks at the others."""
QUIET = 3 * BEAT
"""A rank that was not heard from for so long may be gone: its word takes a beat to write and one to read."""
MOST_NAMED = 8
FAILURE = "failure"
"""Where the first rank that fails says why."""
SIGNATURE = 2 * hashlib.sha256().digest_size
"""Characters, before the word itself."""
ANSWER = timedelta(seconds=2)
LONGEST_REASON = 20_000  # characters


class RankState(NamedTuple):
    """How far a rank has come."""

    name: str
    where: str
    """The last progress it reported."""
    place: str = ""
    """The line it is at."""


class Meeting:
    """One rank at the store, over a connection of its own."""

    def __init__(self, world: World, key: bytes) -> None:
        """`key` is known only to the ranks of this start of the job, so nothing said at another start counts."""
        self.failure: tuple[str, int] | None = None
        """Why the job ends, and its exit code."""
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
            store.set_timeout(ANSWER)  # of a word that somebody takes away between the question and the answer
            self._store = PrefixStore(f"watchdog/{attempt()}", store)
        return self._store

    def hold(self, state: RankState) -> None:
        """Says how far this rank has come, and reads how far the others have: rank 0 all, the rest rank 0."""
        self._write(str(self._rank), [time.monotonic(), *state])
        for rank in self._others:
            if (word := self._read(str(rank))) and word[0] > self._last[rank]:
                self._last[rank], self._heard[rank] = word[0], time.monotonic()
                self.known[rank] = RankState(*word[1:])
        if failure := self._read(FAILURE):
            self.failure = failure[0], failure[1]

    def tell(self, reason: str, code: int) -> None:
        """Tells every rank why the job ends; the first reason counts."""
        with contextlib.suppress(DistError):
            if self._read(FAILURE) is None:
                self._write(FAILURE, [printable_lines(reason[:LONGEST_REASON]), code])

    def _write(self, name: str, word: list[Any]) -> None:
        text = json.dumps(word)
        self._connect().set(name, self._sign(name, text.encode()) + text)

    def _read(self, name: str) -> list[Any] | None:
        """What a rank of this job has last written there."""
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
        """Once: a stranger may write as often as he likes."""
        if not self._warned:
            self._warned = True
            point = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            say(
                f"WARNING: somebody else writes to this job's store at {point}; it is not listened to, and training"
                " goes on; see docs/reference/network.md"
            )

    def silent_since(self, moment: float) -> list[int]:
        """The ranks that were last heard from before `moment`; the first few."""
        return [rank for rank in self._others if self._heard[rank] < moment][:MOST_NAMED]

    def elsewhere(self, place: str) -> list[int]:
        """The ranks that are at another line than this one, or were not heard from lately; the first few."""
        silent = self.silent_since(time.monotonic() - QUIET)
        return [rank for rank in self._others if rank in silent or self.known[rank].place != place][:MOST_NAMED]

    def states(self, ranks: Sequence[int]) -> str:
        """How far other ranks have come and where they were, as last heard from."""
        states = map(self.known.__getitem__, ranks)
        return ", ".join(f"{state.name} (after {state.where}, at {state.place})" for state in states)

    def gone(self) -> list[int]:
        """The ranks that fall silent from here on, for one whose connection has failed; listens to all for a while."""
        self._heard, self._others = dict.fromkeys(self._everyone, time.monotonic()), self._everyone
        time.sleep(QUIET + BEAT)
        silent = self.silent_since(time.monotonic() - QUIET)
        return [0] if 0 in silent else silent  # the store ends with rank 0, and nobody is heard without it


def say(text: str) -> None:
    """Prints where the launcher listens, if it still does."""
    with contextlib.suppress(OSError):  # with the launcher its end of our output may be gone
        print(text, file=sys.stderr, flush=True)
