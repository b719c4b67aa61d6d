"""Why each rank ended: RUN/logs/rank-0000.json, begun when it starts and completed when it ends.

A rank that is killed completes nothing, and its record says so.
"""

import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, Self

from foundation.files import write_atomically

LOGS = "logs"
Reason = Literal["error", "refused", "hang", "launcher", "lost", "told", "stopped", "done"]
"""`lost`: another rank was out of reach; `told`: another rank has failed; `launcher`: it has exited."""
CAUSES: tuple[tuple[Reason | None, ...], ...] = ((None, "error", "refused"), ("hang", "launcher"), ("lost",))
"""The most likely first: ranks that end the job before those that end because of them."""


class EndRecord(NamedTuple):
    """The end of one rank."""

    rank: int
    host: str
    process: int
    time: str
    """Of its start, then of its end."""
    reason: Reason | None = None
    """None: it runs, or was killed."""
    exit_code: int | None = None
    step: int | None = None
    """The last that it finished."""
    sentence: str = "exited without a message (probably killed)"

    @classmethod
    def of(cls, rank: int) -> Self:
        """Of this process, which runs."""
        return cls(rank, socket.gethostname(), os.getpid(), now())

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"


def write_record(folder: Path, record: EndRecord) -> None:
    """Replaces what this rank's record was before."""
    path = folder / LOGS / f"rank-{record.rank:04d}.json"
    write_atomically(path, (json.dumps(record._asdict()) + "\n").encode())


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_records(folder: Path) -> list[EndRecord]:
    """Those of every rank, in order; not one that is damaged."""
    records = []
    for path in sorted((folder / LOGS).glob("rank-*.json")):
        with suppress(OSError, ValueError, TypeError):
            records.append(EndRecord(**json.loads(path.read_text())))
    return records


def first_causes(records: list[EndRecord]) -> list[EndRecord]:
    """The ranks that ended the job, without those that ended because of them; none where all ended as they should."""
    return next((found for reasons in CAUSES if (found := [end for end in records if end.reason in reasons])), [])
