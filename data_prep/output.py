"""Manages the output folder of a build: one build at a time, one configuration, resumable."""

import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from data_prep.curation.contamination import Index
from data_prep.manifest import (
    FORMAT_VERSION,
    HELD_OUT_NAME,
    MANIFEST_NAME,
    RECORDS_NAME,
    WORK_NAME,
    Books,
    Manifest,
    ShardEntry,
    save_manifest,
    sum_shards,
)
from data_prep.pipeline import PUNKT_NAME
from data_prep.punkt import PunktModel
from data_prep.records import PLAN, SIDES, Plan, ShardRecord, load_record
from data_prep.sentences import save_model
from data_prep.tokens import TOKENIZER_NAME, WordPiece
from foundation.config import ConfigError
from foundation.files import TEMPORARY_SUFFIX, require_folder, write_if_other
from foundation.locks import Held, Lock

LOCK_NAME = ".lock"
CONTAMINATED_NAME = "contaminated.jsonl"


def locked(folder: Path) -> Lock:
    """Locks the folder against other builds, making it if missing.

    Raises:
        ConfigError: another build holds the lock, or the folder cannot be made.
    """
    require_folder(folder)
    try:
        return Lock(folder / LOCK_NAME)
    except Held as holder:
        raise ConfigError(
            f"output: another build is writing to {folder} ({holder}); wait for it or choose another folder"
        ) from None


def open_plan(folder: Path) -> Plan | None:
    """Returns the plan of the build in the folder, unfinished or complete; None if the folder is empty.

    Raises:
        ConfigError: the folder holds other files, or a build that cannot be resumed.
    """
    plan = load_record(folder, PLAN, Plan)
    if plan is None and (folder / RECORDS_NAME).is_dir() and any((folder / RECORDS_NAME).glob("shard-*")):
        raise ConfigError(
            f"output: {folder / RECORDS_NAME / PLAN}.json is missing or damaged: the settings of that build cannot be "
            "read; choose another folder"
        )
    if plan is None and (folder / MANIFEST_NAME).is_file():
        raise ConfigError(
            f"output: {folder} is complete, but whether it was built from this input cannot be checked: it has no "
            f"{RECORDS_NAME}; choose another --output"
        )
    if plan is None and any(entry.name not in (WORK_NAME, RECORDS_NAME, LOCK_NAME) for entry in folder.iterdir()):
        raise ConfigError(f"output: {folder} holds files that do not belong to a build; choose an empty or new folder")
    return plan


def refuse_another(plan: Plan, earlier: Plan, folder: Path) -> None:
    """Refuses, with one line per difference, a `plan` that differs from the `earlier` one of the folder's build."""
    old, new = _flat(earlier.model_dump()), _flat(plan.model_dump())
    problems = [
        f"{name}: the build in {folder} has {old.get(name, 'none')}, this one {new.get(name, 'none')}; "
        "use the old value or another --output"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if problems:
        more = [f"and {len(problems) - 5} more differences"] if len(problems) > 5 else []
        raise ConfigError(*problems[:5], *more)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for group in values.values() for name, value in group.items()}


def prepare(folder: Path, tokenizer: WordPiece, punkt: PunktModel | None, index: Index | None = None) -> None:
    """Removes files that a killed run left half-written, and writes what the workers load.

    That is the tokenizer, the Punkt model and the n-grams of evaluation sets.
    """
    for leftover in folder.rglob(f"*{TEMPORARY_SUFFIX}"):
        leftover.unlink()
    (folder / WORK_NAME).mkdir(exist_ok=True)
    (folder / HELD_OUT_NAME).mkdir(exist_ok=True)
    tokenizer.save(folder / TOKENIZER_NAME)
    if punkt is not None:
        save_model(punkt, folder / PUNKT_NAME)
    if index is not None:
        index.save(folder / WORK_NAME)


def finish(folder: Path, plan: Plan, names: Sequence[str], tokenizer: WordPiece) -> Manifest:
    """Writes the manifests, the main one last, and removes the working files; returns the main manifest.

    Files that are already up to date are left untouched. `names` are the shards' names, in order.

    Raises:
        ConfigError: no document is left for training.
    """
    entries: dict[str, list[ShardEntry]] = {side: [] for side in SIDES}
    books = Books()
    for record in _records(folder, names):
        books += record.books
        for side, found in entries.items():
            found += filter(None, [record.entry(side)])
    train, held_out = (_manifest(plan, entries[side], tokenizer, books) for side in SIDES)
    if train is None:
        raise ConfigError("input: no document is left for training; give more text or a smaller --held_out")
    if held_out:
        tokenizer.save(folder / HELD_OUT_NAME / TOKENIZER_NAME)
        save_manifest(held_out, folder / HELD_OUT_NAME)
    else:
        shutil.rmtree(folder / HELD_OUT_NAME, ignore_errors=True)
    lines = [f"{one.model_dump_json()}\n" for record in _records(folder, names) for one in record.contaminated]
    if lines:
        write_if_other(folder / CONTAMINATED_NAME, "".join(lines).encode())
    save_manifest(train, folder)
    shutil.rmtree(folder / WORK_NAME, ignore_errors=True)
    return train


def _records(folder: Path, names: Sequence[str]) -> Iterator[ShardRecord]:
    for name in names:
        record = load_record(folder, name, ShardRecord)
        assert record is not None
        yield record


def _manifest(plan: Plan, shards: Sequence[ShardEntry], tokenizer: WordPiece, books: Books) -> Manifest | None:
    """Returns the manifest of one side; None if it has no shards."""
    config = plan.config
    if not shards:
        return None
    return Manifest(
        format_version=FORMAT_VERSION,
        config=config,
        vocab_size=tokenizer.vocab_size,
        special_tokens=tokenizer.special,
        tokenizer_files={name: sha256(content).hexdigest() for name, content in tokenizer.files().items()},
        versions=plan.versions,
        input_files=len(plan.inputs),
        books=books,
        totals=sum_shards(shards, config.seq_length, len(config.ngram)),
        shards=tuple(shards),
    )
