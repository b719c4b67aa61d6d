"""The end record of each rank, which says why it ended: RUN/logs/rank-0000.json.

It is written when the rank starts and completed when it ends. A killed rank leaves it incomplete, which shows the kill.
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
"""`lost`: another rank was unreachable; `told`: another rank reported a failure; `launcher`: the launcher exited."""
CAUSES: tuple[tuple[Reason | None, ...], ...] = ((None, "error", "refused"), ("hang", "launcher"), ("lost",))
"""Reasons grouped by how likely they started the failure, most likely first; ranks with other reasons only followed."""


class EndRecord(NamedTuple):
    """Identity of one rank's process, and why it ended."""

    rank: int
    host: str
    process: int
    time: str
    """Start time, replaced by the end time when it ends; ISO 8601, UTC."""
    reason: Reason | None = None
    """`None` if the rank is running or was killed."""
    exit_code: int | None = None
    step: int | None = None
    """The last finished step."""
    sentence: str = "exited without a message (probably killed)"

    @classmethod
    def of(cls, rank: int) -> Self:
        """Returns the record of this process at its start."""
        return cls(rank, socket.gethostname(), os.getpid(), now())

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"


def write_record(folder: Path, record: EndRecord) -> None:
    """Writes a rank's record, replacing its previous one."""
    path = folder / LOGS / f"rank-{record.rank:04d}.json"
    write_atomically(path, (json.dumps(record._asdict()) + "\n").encode())


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_records(folder: Path) -> list[EndRecord]:
    """Reads the end records of all ranks, in rank order; skips damaged ones."""
    records = []
    for path in sorted((folder / LOGS).glob("rank-*.json")):
        with suppress(OSError, ValueError, TypeError):
            records.append(EndRecord(**json.loads(path.read_text())))
    return records


def first_causes(records: list[EndRecord]) -> list[EndRecord]:
    """Returns the ranks that probably ended the job, without those that only followed; empty if all ended normally."""
    return next((found for reasons in CAUSES if (found := [end for end in records if end.reason in reasons])), [])
