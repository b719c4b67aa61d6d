"""Reads everything about a run from its folder, in any state: running, failed at its start, or with damaged files."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra_sampler.foundation.locks import holder
from pretrain.config import RunConfig
from pretrain.job.rank_log import EndRecord, first_cause, rank_log, read_ends
from pretrain.presets import PRESETS, with_objective
from pretrain.runs.folder import CHECKPOINTS, LOCK, STARTS, RunDescription, flat, read_run
from pretrain.runs.log import RECORDS, lines_of, parsed, records_in

LONGEST_WARNING = 400
"""Maximum characters shown of a warning."""
LARGEST = 1e30
"""Numbers from this magnitude on are not drawn, as axes would overflow."""
KINDS = ("train", "held_out", "example")
NONFINITE = "nonfinite-step-*.json"
"""Files that name a step whose loss or gradient was not finite."""
_STEP = re.compile(r"step-(\d{1,15})(?:\.json)?$")

Record = dict[str, Any]


class Log(NamedTuple):
    """The records in `metrics.jsonl`."""

    train: list[Record]
    held_out: list[Record]
    example: Record
    """The last example; empty if there is none."""
    damaged: int
    """Lines that are not valid records."""


class History(NamedTuple):
    """Everything in a run folder that the run's page shows."""

    folder: Path
    description: RunDescription
    log: Log
    starts: list[Record]
    ends: list[EndRecord]
    checkpoints: list[int]
    nonfinite: list[int]
    """Steps whose loss or gradient was not finite."""
    warnings: Counter[str]
    """Warnings in the first rank's log, with their counts."""
    held_by: str | None
    """The command that is training in the folder now, if any."""

    @property
    def step(self) -> int:
        """The last logged training step; 0 if none."""
        return self.log.train[-1]["step"] if self.log.train else 0

    @property
    def cause(self) -> str:
        """Why the run failed, in one line; empty if it did not."""
        cause = first_cause(self.ends)
        if self.held_by or self.step >= self.description.run.optim.steps or not cause:
            return ""
        return f"{cause.name}: {cause.sentence}"

    @property
    def state(self) -> str:
        """The state of the run in one phrase: running, failed, stopped or finished."""
        steps = self.description.run.optim.steps
        if self.held_by or self.step < steps:
            how = "Running" if self.held_by else "Failed" if self.cause else "Stopped"
            step = max((self.step, *self.checkpoints, *(end.step or 0 for end in self.ends)))  # between two log lines
            return f"{how}, step {step:,} of {steps:,}"
        return f"Finished, {steps:,} steps"


def read_history(folder: Path) -> History:
    """Reads the files of a run folder that its page shows.

    Raises:
        ConfigError: it is not a run folder, or its run.json is damaged.
    """
    warnings = (
        line.decode(errors="replace").strip()[:LONGEST_WARNING]
        for line in lines_of(rank_log(folder, 0))
        if b"WARNING:" in line
    )
    return History(
        folder,
        read_run(folder),
        read_log(folder / RECORDS),
        read_starts(folder),
        read_ends(folder),
        steps_named(folder / CHECKPOINTS, "step-*"),
        steps_named(folder, NONFINITE),
        Counter(warnings),
        holder(folder / LOCK),
    )


def read_log(path: Path) -> Log:
    """Reads a run's log; skips and counts damaged lines."""
    found: dict[str, list[Record]] = {kind: [] for kind in KINDS}
    damaged = 0
    for _, record in records_in(path):
        if record and record.get("kind") in KINDS:
            found[record["kind"]].append(record)
        else:
            damaged += 1
    return Log(found["train"], found["held_out"], (found["example"] or [{}])[-1], damaged)


def read_starts(folder: Path) -> list[Record]:
    """Returns the records of the run's starts, oldest first."""
    return [start for start in map(parsed, lines_of(folder / STARTS)) if isinstance(start, dict)]


def value_of(record: Mapping[str, Any], path: str) -> float:
    """Returns the number at a path such as `max_probability/p_G/9`; NaN if there is none or it is too large to draw."""
    found: Any = record
    for part in path.split("/"):
        if isinstance(found, list):
            found = {str(place): value for place, value in enumerate(found)}
        found = found.get(part) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and abs(found) < LARGEST else math.nan


def nearest_preset(run: RunConfig) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """Returns the preset most like the run, and for each differing setting its values in preset and run."""
    found, ours = {}, dict(flat(run.model_dump(mode="json")))
    for name, preset in PRESETS.items():
        theirs = dict(flat(with_objective(preset, run.objective.name).model_dump(mode="json")))
        values = {key: (theirs.get(key), ours.get(key)) for key in theirs | ours}
        found[name] = {key: (preset, own) for key, (preset, own) in values.items() if preset != own}
    name = min(found, key=lambda name: len(found[name]))
    return name, found[name]


def steps_named(folder: Path, pattern: str) -> list[int]:
    """Returns the steps in the names of a folder's files, in order."""
    return sorted(int(found[1]) for path in folder.glob(pattern) if (found := _STEP.search(path.name)))
