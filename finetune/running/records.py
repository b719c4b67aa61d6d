"""What is kept of a finished run: one line of `results.jsonl`, from which `report.py` makes its tables, and files."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.config import GlueConfig, SquadConfig
from finetune.presets import ModelSize
from foundation.config import ConfigError, StrictConfig
from foundation.files import write_atomically

FILE_NAME = "results.jsonl"
PREDICTIONS = "predictions"
"""Folder, beside the file, of what runs leave besides their line."""
EXAMPLES = "examples.json"
"""In a run's folder there: what it said of each dev example, for paired tests (`significance.py`)."""

Metrics = dict[str, dict[str, float]]
"""Dev split -> metric -> value, as fractions of 1."""


class RunIdentity(StrictConfig):
    """What decides a run's result; a run whose identity is in the file already is not repeated."""

    task: str
    seed: int
    model_sha256: str
    """Of the model folder's files."""
    random_weights: bool
    data_sha256: str
    """Of the examples."""
    settings: SquadConfig | GlueConfig

    def folder_name(self) -> str:
        """A name of its own for whatever the run leaves besides its record."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return f"{self.task.replace(' ', '-')}-seed{self.seed}-{digest[:10]}"


class RunRecord(StrictConfig):
    """One finished run."""

    run: RunIdentity
    model: str
    """As named on the command line."""
    model_size: ModelSize
    """The size whose rows of the paper it stands beside."""
    train_examples: int
    left_out: dict[str, int] = {}
    """Malformed rows that none of the numbers below knows of, by file."""
    last: Metrics
    """Dev scores after the last epoch: what is reported."""
    best: Metrics
    """Dev scores after the epoch with the best first metric: optimistic, for the dev set chose it."""
    train_losses: tuple[float | None, ...]
    """Mean loss of each epoch; none where it was not finite."""
    collapsed: str | None
    """Why the run counts as collapsed; it stays in every median all the same."""
    seconds: float
    """Wall time in the process that finished it; one that was stopped before is not counted."""
    precision: str
    world_size: int


def read_records(path: Path) -> list[RunRecord]:
    """The records of a file; none where there is no file. A line cut short by a kill is named and left out.

    Raises:
        ConfigError: a complete line that is no record.
    """
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            print(f"{path}, line {number}: cut short, left out", flush=True)
            continue
        if not isinstance(values, dict):
            raise ConfigError(f"{path}, line {number}: got {line}, expected the JSON object of a run; remove the line")
        records.append(RunRecord.from_values(values, f"{path}, line {number}"))
    return records


def append_record(path: Path, record: RunRecord) -> None:
    """Adds one line, whole, beside other processes; a line once cut short by a kill is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = record.model_dump_json().encode() + b"\n"
    with path.open("a+b", buffering=0) as file:
        with contextlib.suppress(OSError):  # a file system without locks: one write at the end is whole all the same
            fcntl.lockf(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line
        file.write(line)
        os.fsync(file.fileno())


def write_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Writes each value under its name: a text as it is, anything else as JSON."""
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        write_atomically(path, text.encode())
