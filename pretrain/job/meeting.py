"""What the ranks of a job tell each other at its store, beside the collectives: how far each has come, why it ends.

The store is torch's: whoever reaches its port can read, write, list and delete everything in it (docs/operations.md).
So each word carries the signature of a key that the ranks share over the connections between them and never write
there; words without it are passed over. That keeps strangers from speaking for a rank, not from silencing one.
"""

import contextlib
import hashlib
import hmac
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any, NamedTuple

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistError

from pretrain.job.processes import World, attempt
from pretrain.job.rank_log import printable_lines

MOST_NAMED = 8
FAILURE = "failure"
"""Where the first rank that fails says why."""
SIGNATURE = 2 * hashlib.sha256().digest_size
"""Characters, before the word itself."""
ANSWER = timedelta(seconds=2)
LONGEST_REASON = 20_000
"""Characters."""


class RankState(NamedTuple):
    """How far a rank has come."""

    name: str
    where: str
    """The last of them."""
    place: str = ""
    """The line it stands at."""


class Meeting:
    """One rank's place at the store, over a connection of its own."""

    def __init__(self, world: World, key: bytes) -> None:
        """`key` is known to the ranks of this start of the job alone, so nothing said at another start counts."""
        self.failure: tuple[str, int] | None = None
        """Why the job ends, and its exit code."""
        self._rank, self._key = world.rank, key
        self._others = range(1, world.world_size) if world.is_first else range(1)
        self.known = {rank: RankState(f"rank {rank}", "its start") for rank in self._others}
        self._heard = dict.fromkeys(self._others, time.monotonic())
        self._last = dict.fromkeys(self._others, 0)
        self._beats = 0
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
        """Says how far this rank has come, and listens for the others."""
        self._beats += 1
        self._write(str(self._rank), [self._beats, *state])
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
                " goes on; see docs/operations.md, What is trusted on the network"
            )

    def silent_since(self, moment: float) -> list[int]:
        """The ranks that were last heard of before `moment`; the first few."""
        return [rank for rank, heard in self._heard.items() if heard < moment][:MOST_NAMED]

    def elsewhere(self, place: str) -> list[int]:
        """The ranks that stand elsewhere than this one, which waits for them; the first few."""
        return [rank for rank, state in self.known.items() if state.place != place][:MOST_NAMED]


def say(text: str) -> None:
    """Prints where the launcher listens, if it still does."""
    with contextlib.suppress(OSError):  # with the launcher its end of our output may be gone
        print(text, file=sys.stderr, flush=True)
