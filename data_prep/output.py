"""Manages the output folder of a build: one build at a time, one configuration, resumable.

The records are the build's plan and one file per finished shard, each with its own checksum. A worker writes a shard's
record after its files. A shard without a sound record, or whose files do not match it, is built again.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from data_prep.curation.contamination import Index
from data_prep.manifest import (
    FORMAT_VERSION,
    HELD_OUT_NAME,
    MANIFEST_NAME,
    RECORDS_NAME,
    WORK_NAME,
    Books,
    BuildConfig,
    Manifest,
    ShardEntry,
    save_manifest,
    sum_shards,
)
from data_prep.sentences import PUNKT_NAME, PunktModel, save_model
from data_prep.tokens import TOKENIZER_NAME, SubwordTokenizer
from electra_sampler.foundation.config import ConfigError, StrictRecord, explained, few, refuse
from electra_sampler.foundation.files import require_folder, sealed, unsealed, write_if_other
from electra_sampler.foundation.locks import Held, Lock

LOCK_NAME = ".lock"
CONTAMINATED_NAME = "contaminated.jsonl"
PLAN = "plan"
TRAIN, HELD_OUT = "train", "held_out"
SIDES = {TRAIN: "", HELD_OUT: HELD_OUT_NAME}
"""The sides of a shard, each a field of its record, and the folder of each side below the output folder."""


class BuildPlan(StrictRecord):
    """Everything that determines a build's bytes; a run can resume a build only with an equal plan."""

    config: BuildConfig
    versions: dict[str, str]
    inputs: dict[str, int]
    """Bytes on disk of every input file, by its key."""


class ContaminatedDocument(StrictRecord):
    """A document that was dropped because it shares an n-gram with an evaluation set."""

    document: str
    """`KEY@OFFSET`: the key of its file, and its byte offset in the file's text."""
    evaluation_set: str
    example: str
    ngram: str


class ShardRecord(StrictRecord):
    """The outcome of building one shard; `train` or `held_out` is None if that side received no text."""

    text: str
    """Digest of the input text."""
    duplicates: str
    """Digest of the indices of the documents that duplicate others in the corpus."""
    books: Books
    train: ShardEntry | None
    held_out: ShardEntry | None
    contaminated: tuple[ContaminatedDocument, ...] = Field(default=(), exclude_if=lambda found: not found)
    """The shard's first contaminated documents."""


Record = TypeVar("Record", bound=StrictRecord)


def save_record(output: Path, name: str, record: StrictRecord) -> None:
    """Writes the plan's or a shard's record; leaves an equal one untouched."""
    write_if_other(output / RECORDS_NAME / f"{name}.json", sealed(record.model_dump(mode="json")))


def load_record(output: Path, name: str, kind: type[Record]) -> Record | None:
    """Returns the record of that name; None if it is missing or damaged."""
    try:
        return kind.model_validate_json(unsealed((output / RECORDS_NAME / f"{name}.json").read_bytes()))
    except (FileNotFoundError, ValueError):
        return None


def locked(folder: Path) -> Lock:
    """Locks the folder against other builds; makes it if missing; returns the lock.

    Raises:
        ConfigError: another build holds the lock, or the folder cannot be made.
    """
    require_folder(folder)
    with explained(f"output: another build is writing to {folder}", "wait for it or choose another folder", Held):
        return Lock(folder / LOCK_NAME)


def open_plan(folder: Path) -> BuildPlan | None:
    """Returns the plan of the build in the folder, unfinished or complete; None if the folder is empty.

    Raises:
        ConfigError: the folder holds other files, or a build that cannot be resumed.
    """
    plan = load_record(folder, PLAN, BuildPlan)
    others = {entry.name for entry in folder.iterdir()} - {RECORDS_NAME, LOCK_NAME}
    if plan is None and (others or any((folder / RECORDS_NAME).glob("shard-*"))):
        raise ConfigError(
            f"output: {folder} holds files, but not the plan of their build ({RECORDS_NAME}/{PLAN}.json is missing or "
            "damaged); choose an empty or new folder"
        )
    return plan


def refuse_another(plan: BuildPlan, earlier: BuildPlan, folder: Path) -> None:
    """Raises a ConfigError, with a line per difference, if `plan` differs from `earlier`, the plan in `folder`."""
    old, new = (one.config.model_dump() | one.versions | one.inputs for one in (earlier, plan))
    problems = [
        f"input: the text has changed since the build in {folder} began (a sample of it gives another Punkt model); "
        "restore it, or choose another --output"
        if name == "punkt_sha256" and old["punkt"] == new["punkt"] == "learned"
        else f"{name}: the build in {folder} has {old.get(name, 'none')}, this one {new.get(name, 'none')}; "
        "use the old value or another --output"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    refuse(few(problems, "differences"))


def prepare(folder: Path, tokenizer: SubwordTokenizer, punkt: PunktModel | None, index: Index | None = None) -> None:
    """Writes what the workers load: the tokenizer, the Punkt model and the n-grams of evaluation sets."""
    tokenizer.save(folder / TOKENIZER_NAME)
    if punkt is not None:
        save_model(punkt, folder / PUNKT_NAME)
    if index is not None:
        index.save(folder / WORK_NAME)


def finish(folder: Path, plan: BuildPlan, names: Sequence[str], tokenizer: SubwordTokenizer) -> Manifest:
    """Writes the manifests, the main one last, and removes the working files; returns the main manifest.

    Files that are already up to date are left untouched. `names` are the shards' names, in order.

    Raises:
        ConfigError: no document is left for training.
    """
    records = [record for name in names if (record := load_record(folder, name, ShardRecord))]
    assert len(records) == len(names)
    books = sum((record.books for record in records), Books())
    train, held_out = (
        _manifest(plan, [entry for record in records if (entry := getattr(record, side))], tokenizer, books)
        for side in SIDES
    )
    if train is None:
        raise ConfigError("input: no document is left for training; give more text or a smaller --held_out")
    if held_out:
        tokenizer.save(folder / HELD_OUT_NAME / TOKENIZER_NAME)
        save_manifest(held_out, folder / HELD_OUT_NAME)
    else:
        (folder / HELD_OUT_NAME / MANIFEST_NAME).unlink(missing_ok=True)
        with suppress(OSError):  # it may hold other files
            (folder / HELD_OUT_NAME).rmdir()
    if lines := [f"{one.model_dump_json()}\n" for record in records for one in record.contaminated]:
        write_if_other(folder / CONTAMINATED_NAME, "".join(lines).encode())
    save_manifest(train, folder)
    shutil.rmtree(folder / WORK_NAME, ignore_errors=True)
    return train


def _manifest(
    plan: BuildPlan, shards: Sequence[ShardEntry], tokenizer: SubwordTokenizer, books: Books
) -> Manifest | None:
    """Returns the manifest of one side; None if it has no shards."""
    if not shards:
        return None
    return Manifest(
        format_version=FORMAT_VERSION,
        config=plan.config,
        vocab_size=tokenizer.vocab_size,
        special_tokens=tokenizer.special,
        tokenizer_files={name: sha256(content).hexdigest() for name, content in tokenizer.files().items()},
        versions=plan.versions,
        input_files=len(plan.inputs),
        books=books,
        totals=sum_shards(shards, plan.config.seq_length, len(plan.config.ngram)),
        shards=tuple(shards),
    )
