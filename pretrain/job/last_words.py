"""Which rank ended a job, and its last words, from the ranks' own logs.

Launchers do not say it: of several ranks DeepSpeed's always names the last of the machine, whichever it was.
"""

import re
from pathlib import Path
from typing import NamedTuple

from pretrain.job.rank_log import HEADER, rank_logs

ENDING = re.compile(
    r"^rank \d+ on \S+ (?:ends|failed after)|: SIG\w+ received|^Fatal Python error|^Traceback", re.MULTILINE
)
"""How a rank tells of its own end; one that was killed does not."""
ACCUSING = re.compile(r"^rank \d+ on \S+ ends: (?:rank \d+ on \S+: )?.*?(rank \d+ on [^\s:,]+)", re.MULTILINE)
"""The watchdog of a rank that was told by another, or waits for it; a rank that was told says first by whom."""
CONNECTION = re.compile(r"[Cc]onnection (?:closed|reset|refused)|DistNetworkError|DistStoreError|NCCL")
"""What a rank fails of when another is gone."""


class LastWords(NamedTuple):
    """What a rank has said since a start."""

    name: str
    log: Path
    text: str

    @property
    def tells_of_its_end(self) -> bool:
        return bool(ENDING.search(self.text))

    def last_lines(self, count: int) -> list[str]:
        """The end of what it said; before it, if it lies further back, the line that first tells of its end."""
        lines = self.text.splitlines()
        further_back = [line for line in lines[:-count] if ENDING.search(line)]
        return further_back[:1] + lines[-count:]


class Listening:
    """Hears what the ranks of a run add to their logs from its creation on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard = {log: log.stat().st_size for log in rank_logs(folder)}

    def words(self) -> list[LastWords]:
        """Of every rank that has started since; in the order of ranks."""
        found = []
        for log in rank_logs(self._folder):
            text = log.read_bytes()[self._heard.get(log, 0) :].decode(errors="replace")
            if headers := HEADER.findall(text):
                found.append(LastWords(headers[-1], log, text))
        return found


def blamed(ranks: list[LastWords]) -> list[LastWords]:
    """Those on whom the end of the job rests; empty where none is told from the others.

    In this order: whom the others' watchdogs name; who fell silent while others tell of their end, as one that was
    killed does; who failed of something else than its connection to the others.
    """
    accusing = [names for rank in ranks if (names := ACCUSING.findall(rank.text))]
    accused = accusing[0] if accusing else []  # the first rank's, which hears of all the others
    telling = [rank for rank in ranks if rank.tells_of_its_end]
    for some in (
        [rank for rank in ranks if rank.name in accused],
        [rank for rank in ranks if telling and not rank.tells_of_its_end],
        [rank for rank in telling if not CONNECTION.search(rank.text)],
    ):
        if some:
            return some
    return ranks if len(ranks) == 1 else []
