"""The record of a finished run: one line of `results.jsonl`, which `report.py` reads, and files beside it."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Tag
from pydantic_core import from_json

from electra_sampler.foundation.config import ConfigError, StrictConfig, shown
from electra_sampler.foundation.files import read_file, write_atomically
from finetune.config import FinetuneConfig, GlueConfig, SquadConfig, TaggingConfig
from finetune.presets import ModelSize

FILE_NAME = "results.jsonl"
PREDICTIONS = "predictions"
"""Folder beside `results.jsonl` for all other output of runs."""
EXAMPLES = "examples.json"
"""File in a run's subfolder of `PREDICTIONS`: its answer to each dev example, for paired tests."""

Metrics = dict[str, dict[str, float]]
"""Dev split -> metric -> value, as fractions of 1."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The fields that every task has; GLUE, SQuAD and token classification add their own."""

    name: str
    metrics: tuple[str, ...] = ("accuracy",)
    """Metrics shown while a run trains; the first one decides which epoch is best."""
    dev_splits: tuple[str, ...] = ("dev",)
    """Splits that are scored; the first one decides which epoch is best."""
    official_examples: int | None = None
    """Number of examples in the official training file, to recognize it; `None` if there is no official file."""


def sha256_of(parts: Iterable[object]) -> str:
    """Returns the SHA-256 over the `repr` of each part: equal for equal examples, whatever files they come from."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode())
    return digest.hexdigest()


def answers_folder(tests: Iterable[object]) -> str:
    """Returns a subfolder name for a run's predictions on these test examples; other examples get another name."""
    return f"test-{sha256_of(tests)[:10]}"


def task_prefix(task: str) -> str:
    """Returns the beginning of the folder names of a task's runs."""
    return f"{task.replace(' ', '-')}-seed"


def kind_of(settings: Any) -> str:
    """Returns the kind of task that the settings are for: `SQuAD`, `tagging` or `GLUE`. It decides their class."""
    values = dict(settings) if isinstance(settings, dict | FinetuneConfig) else {}
    if "stride" in values:
        return "SQuAD"
    return "tagging" if values.get("head") == "linear" else "GLUE"


class RunIdentity(StrictConfig):
    """Everything that determines a run's result; a run whose identity is already in the file is not repeated."""

    task: str
    seed: int
    model_sha256: str
    """Digest of the files of the model folder, but its card."""
    random_weights: bool
    data_sha256: str
    """Digest of the examples."""
    settings: Annotated[
        Annotated[TaggingConfig, Tag("tagging")]
        | Annotated[GlueConfig, Tag("GLUE")]
        | Annotated[SquadConfig, Tag("SQuAD")],
        Discriminator(kind_of),
    ]

    @property
    def setting(self) -> "RunIdentity":
        """The run without its seed: what all seeds of its setting have in common."""
        return self.model_copy(update={"seed": None})

    def folder_name(self) -> str:
        """Returns the name of the folder for the run's other files, unique to the run."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return f"{task_prefix(self.task)}{self.seed}-{digest[:10]}"


class RunRecord(StrictConfig):
    """One finished run, a line of `results.jsonl`: its identity, scores and circumstances."""

    run: RunIdentity
    model: str
    """The model's name on the command line."""
    model_size: ModelSize
    """Size of the paper's models that the run is compared with."""
    train_examples: int
    last: Metrics
    """Dev scores after the last epoch; these are reported."""
    best: Metrics
    """Dev scores after the epoch with the best first metric: optimistic, because the dev set chose it."""
    train_losses: tuple[float | None, ...]
    """Mean loss of each epoch; `None` if it was not finite."""
    collapsed: str | None
    """Why the run counts as collapsed; every median still includes it."""
    seconds: float
    """Wall time in the process that finished it; time before an interruption is not counted."""
    precision: str
    world_size: int


def read_records(path: Path) -> list[RunRecord]:
    """Reads the records of a file; empty if it does not exist. Reports and skips incomplete lines, left by a kill.

    Raises:
        ConfigError: a complete line is not a record.
    """
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(read_file(path, "results", "records of runs").splitlines(), 1):
        source = f"{path}, line {number}"
        try:
            values = from_json(line)
        except ValueError:
            print(f"{source}: incomplete, as its process was killed while writing it; skipped", flush=True)
            continue
        if not isinstance(values, dict):
            raise ConfigError(f"{source}: got {shown(values)}, expected the JSON object of a run; remove the line")
        records.append(RunRecord.from_values(values, source))
    return records


def choose_records(keep: str, records: Sequence[RunRecord], task: Task) -> list[RunRecord]:
    """Returns the records whose models are kept, among the records of one setting.

    They are ranked by the task's first metric on its first dev split after the last epoch; of equal scores, the higher
    seed ranks lower. The median of an even number is the lower of the middle two.
    """
    split, metric = task.dev_splits[0], task.metrics[0]
    ranked = sorted(records, key=lambda record: (record.last[split][metric], -record.run.seed))
    middle = (len(ranked) - 1) // 2
    return {"all": ranked, "best": ranked[-1:], "median": ranked[middle : middle + 1], "none": []}[keep]


def append_record(path: Path, record: RunRecord) -> None:
    """Appends one line, even while other processes append; first ends an incomplete line that a kill has left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = record.model_dump_json().encode() + b"\n"
    with path.open("a+b", buffering=0) as file:
        with contextlib.suppress(OSError):  # without locks on this file system, one appended write is whole still
            fcntl.lockf(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line
        file.write(line)
        os.fsync(file.fileno())


def write_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Writes each value to the file of its name: text as it is, anything else as JSON."""
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        write_atomically(folder / name, text.encode())
