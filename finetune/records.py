"""What is kept of a finished run: one line of `results.jsonl`, from which `report.py` makes its tables, and files."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.config import StrictConfig
from finetune.config import FinetuneConfig, SquadConfig
from finetune.presets import ModelSize

FILE_NAME = "results.jsonl"

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
    settings: SquadConfig | FinetuneConfig

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
    last: Metrics
    """Dev scores after the last epoch: what is reported."""
    best: Metrics
    """Dev scores after the epoch with the best first metric: optimistic, for the dev set chose it."""
    train_losses: tuple[float | None, ...]
    """Mean loss of each epoch; none where it was not finite."""
    collapsed: str | None
    """Why the run counts as collapsed; it stays in every median all the same."""
    seconds: float
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
        records.append(RunRecord.from_values(values, f"{path}, line {number}"))
    return records


def append_record(path: Path, record: RunRecord) -> None:
    """Adds one line and waits until it is on the disk; a line once cut short by a kill is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(record.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Writes each value as the JSON file of its name."""
    for name, value in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
