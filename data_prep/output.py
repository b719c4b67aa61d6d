"""The folder of a build: one builder at a time, one configuration, resumed where it stopped.

Until the manifest is there, `.records` holds the plan of the build and the records of its finished chunks.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.chunks import Chunk
from data_prep.config import ConfigError, StrictConfig
from data_prep.formats import Reading
from data_prep.intake import text_digest
from data_prep.manifest import (
    FORMAT_VERSION,
    HELD_OUT_NAME,
    MANIFEST_NAME,
    Books,
    BuildConfig,
    Manifest,
    ShardEntry,
    load_manifest,
    save_manifest,
    sum_shards,
)
from data_prep.pipeline import PUNKT_NAME, RECORDS_NAME, TOKENIZER_NAME, ChunkRecord, record_path
from data_prep.punkt import PunktModel
from data_prep.sentences import save_model
from data_prep.shards import TEMPORARY_SUFFIX, write_atomically
from data_prep.tokens import WordPiece

_PLAN_NAME = "plan.json"


class Plan(StrictConfig):
    """What decides a build's bytes; every run that goes on with it must have the same."""

    config: BuildConfig
    versions: dict[str, str]
    inputs: dict[str, int]
    """Bytes on disk of every input file, by its key."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder, made where missing, for this process alone.

    Raises:
        ConfigError: another build holds it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {folder} cannot be made ({error.strerror}); choose another folder") from None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"output: another build is writing to {folder}; wait for it or choose another") from None
    finally:
        os.close(handle)


def earlier_plan(folder: Path) -> Plan | None:
    """The plan of the build that was begun or completed in the folder; None for an empty one.

    Raises:
        ConfigError: the folder holds something else.
    """
    if (folder / MANIFEST_NAME).is_file():
        manifest = load_manifest(folder)
        return Plan(config=manifest.config, versions=manifest.versions, inputs=manifest.inputs)
    path = folder / RECORDS_NAME / _PLAN_NAME
    if path.is_file():
        return Plan.from_values(json.loads(path.read_bytes()), source=str(path))
    if any(entry.name != RECORDS_NAME for entry in folder.iterdir()):
        raise ConfigError(f"output: {folder} holds files that are not a build's; choose an empty or a new folder")
    return None


def refuse_another(plan: Plan, earlier: Plan, folder: Path) -> None:
    """Raises ConfigError, one line for each difference, where `plan` is not the folder's own."""
    old, new = _flat(earlier.model_dump()), _flat(plan.model_dump())
    problems = [
        f"{name}: the build in {folder} has {old.get(name, 'none')}, this one {new.get(name, 'none')}; "
        "use the old value or another --output"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if problems:
        shown = problems[:5]
        raise ConfigError(*shown, *([f"and {len(problems) - 5} more differences"] if len(problems) > 5 else []))


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for group in values.values() for name, value in group.items()}


def prepare(folder: Path, plan: Plan, tokenizer: WordPiece, punkt: PunktModel | None) -> None:
    """Clears away what a killed run left half written, and writes what the workers read."""
    for leftover in folder.rglob(f"*{TEMPORARY_SUFFIX}"):
        leftover.unlink()
    (folder / RECORDS_NAME).mkdir(parents=True, exist_ok=True)
    write_atomically(folder / RECORDS_NAME / _PLAN_NAME, plan.model_dump_json().encode())  # first: it owns the rest
    (folder / HELD_OUT_NAME).mkdir(exist_ok=True)
    tokenizer.save(folder / TOKENIZER_NAME)
    if punkt is not None:
        save_model(punkt, folder / PUNKT_NAME)


def finished_record(folder: Path, chunk: Chunk, reading: Reading) -> ChunkRecord | None:
    """The record of a chunk that an earlier run finished.

    Raises:
        ConfigError: its text is not what it was then. Where files have another time, the text is read to tell.
    """
    path = record_path(folder, chunk.number)
    if not path.is_file():
        return None
    record = ChunkRecord.from_values(json.loads(path.read_bytes()), source=str(path))
    changed = [piece.source for piece in chunk.pieces if record.modified.get(piece.source.key) != piece.source.modified]
    same = (record.key, record.duplicates) == (chunk.key, tuple(sorted(chunk.duplicates)))
    if not same or (changed and record.text != text_digest(chunk, reading)):
        names = ", ".join(sorted({str(source.path) for source in changed or [piece.source for piece in chunk.pieces]}))
        raise ConfigError(
            f"input: {names} changed after a part of it was built into {folder}; put the old content back, or build "
            "into another --output"
        )
    return record


def finish(folder: Path, plan: Plan, tokenizer: WordPiece, records: Sequence[ChunkRecord]) -> Manifest:
    """Writes the manifests, the main one last, and removes the records; returns the main one.

    Raises:
        ConfigError: no document has any text.
    """
    ordered = sorted(records, key=lambda record: record.number)
    books = sum((record.books for record in ordered), Books())
    held_out = _manifest(plan, tokenizer, books, [record.held_out for record in ordered if record.held_out])
    train = _manifest(plan, tokenizer, books, [record.train for record in ordered if record.train])
    if not train.shards:
        raise ConfigError("input: no document is left to train on; give more text or a smaller --held_out")
    if held_out.shards:
        tokenizer.save(folder / HELD_OUT_NAME / TOKENIZER_NAME)
        save_manifest(held_out, folder / HELD_OUT_NAME)
    else:
        shutil.rmtree(folder / HELD_OUT_NAME, ignore_errors=True)
    save_manifest(train, folder)
    clear_records(folder)
    return train


def clear_records(folder: Path) -> None:
    """Removes what only an unfinished build needs."""
    shutil.rmtree(folder / RECORDS_NAME, ignore_errors=True)


def _manifest(plan: Plan, tokenizer: WordPiece, books: Books, shards: list[ShardEntry]) -> Manifest:
    config = plan.config
    return Manifest(
        format_version=FORMAT_VERSION,
        config=config,
        seed=config.seed,
        seq_length=config.seq_length,
        mask_copies=config.mask_copies,
        vocab_size=tokenizer.vocab_size,
        tokenizer_sha256=config.tokenizer_sha256,
        special_tokens=tokenizer.special,
        versions=plan.versions,
        inputs=plan.inputs,
        books=books,
        totals=sum_shards(shards, config.seq_length, len(config.ngram)),
        shards=tuple(shards),
    )
