"""The records of a build: its plan, and one file per finished shard, each with its own checksum.

A worker writes a shard's record after its files. A shard without a sound record, or whose files do not match it, is
built again.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import Field

from data_prep.manifest import HELD_OUT_NAME, RECORDS_NAME, Books, BuildConfig, ShardEntry
from foundation.config import StrictRecord
from foundation.files import make_folder, sealed, unsealed, write_if_other

PLAN = "plan"
TRAIN, HELD_OUT = "train", "held_out"
SIDES = (TRAIN, HELD_OUT)


class Plan(StrictRecord):
    """Everything that determines a build's bytes; a run can resume a build only with an equal plan."""

    config: BuildConfig
    versions: dict[str, str]
    inputs: dict[str, int]
    """Bytes on disk of every input file, by its key."""


class Contaminated(StrictRecord):
    """A document that was dropped because it shares an n-gram with an evaluation set."""

    document: str
    """Key of its file, and its byte offset there."""
    evaluation_set: str
    example: str
    ngram: str


class ShardRecord(StrictRecord):
    """The outcome of building one shard; `train` or `held_out` is None if that side received no text."""

    text: str
    """Digest of the text."""
    duplicates: str
    """Digest of the indices of the documents that are copies of others in the corpus."""
    books: Books
    train: ShardEntry | None
    held_out: ShardEntry | None
    contaminated: tuple[Contaminated, ...] = Field((), exclude_if=lambda found: not found)
    """The shard's first contaminated documents."""

    def entry(self, side: str) -> ShardEntry | None:
        """Returns the manifest's entry of a side; None if it has no text."""
        return self.train if side == TRAIN else self.held_out


Record = TypeVar("Record", bound=StrictRecord)


def save_record(output: Path, name: str, record: StrictRecord) -> None:
    """Writes the plan's or a shard's record; leaves an equal one untouched."""
    make_folder(output / RECORDS_NAME)
    write_if_other(_path(output, name), sealed(record.model_dump(mode="json")))


def load_record(output: Path, name: str, kind: type[Record]) -> Record | None:
    """Returns the record of that name; None if it is missing or damaged."""
    try:
        return kind.model_validate_json(unsealed(_path(output, name).read_bytes()))
    except (FileNotFoundError, ValueError):
        return None


def _path(output: Path, name: str) -> Path:
    return output / RECORDS_NAME / f"{name}.json"


def folder_of(output: Path, side: str) -> Path:
    """Returns the shard folder of a side, training or held out."""
    return output if side == TRAIN else output / HELD_OUT_NAME
