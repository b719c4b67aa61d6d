"""Manages the output folder of a build: one build at a time, one configuration, resumable."""

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from data_prep.curation.contamination import Index
from data_prep.manifest import (
    FORMAT_VERSION,
    HELD_OUT_NAME,
    LOG_NAME,
    MANIFEST_NAME,
    Books,
    Manifest,
    save_manifest,
    sum_shards,
)
from data_prep.parts import WORK_NAME
from data_prep.pipeline import PUNKT_NAME
from data_prep.punkt import PunktModel
from data_prep.records import HELD_OUT, TRAIN, Plan, RecordLog
from data_prep.sentences import save_model
from data_prep.tokens import TOKENIZER_NAME, WordPiece
from foundation.config import ConfigError
from foundation.files import TEMPORARY_SUFFIX, NewFile, file_sha256, require_folder
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


def open_log(folder: Path) -> RecordLog:
    """Opens the log of the build in the folder, unfinished or complete; starts a new log if the folder is empty.

    Raises:
        ConfigError: the folder holds other files, or a build that cannot be resumed.
    """
    if (folder / LOG_NAME).is_file():
        log = RecordLog(folder)
        if log.plan is None and (len(log) or log.damaged):
            raise ConfigError(
                f"output: {log.path} is damaged: the settings of that build cannot be read; choose another folder"
            )
        if log.damaged:
            print(f"{log.path}: {log.damaged} damaged records; rebuilding their chunks and shards")
        return log
    if (folder / MANIFEST_NAME).is_file():
        raise ConfigError(
            f"output: {folder} is complete, but whether it was built from this input cannot be checked: it has no "
            f"{LOG_NAME}; choose another --output"
        )
    if any(entry.name not in (WORK_NAME, LOCK_NAME) for entry in folder.iterdir()):
        raise ConfigError(f"output: {folder} holds files that do not belong to a build; choose an empty or new folder")
    return RecordLog(folder)


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


def finish(folder: Path, log: RecordLog, tokenizer: WordPiece) -> Manifest:
    """Writes the manifests, the main one last, and removes the working files; returns the main manifest.

    Files that are already up to date are left untouched.

    Raises:
        ConfigError: no document is left for training.
    """
    books = sum((record.books for record in log.chunks()), Books())
    train, held_out = (_manifest(log, side, tokenizer, books) for side in (TRAIN, HELD_OUT))
    if train is None:
        raise ConfigError("input: no document is left for training; give more text or a smaller --held_out")
    log.put_in_order()
    if held_out:
        tokenizer.save(folder / HELD_OUT_NAME / TOKENIZER_NAME)
        save_manifest(held_out, folder / HELD_OUT_NAME)
    else:
        shutil.rmtree(folder / HELD_OUT_NAME, ignore_errors=True)
    if train.config.evaluation_sets:
        _list_contaminated(log, folder / CONTAMINATED_NAME)
    save_manifest(train, folder)
    shutil.rmtree(folder / WORK_NAME, ignore_errors=True)
    return train


def _list_contaminated(log: RecordLog, path: Path) -> None:
    """Writes the list of contaminated documents, in the order of the input; none if there are none."""

    def lines() -> Iterator[bytes]:
        for record in log.chunks():
            yield from (f"{found.model_dump_json()}\n".encode() for found in record.contaminated)

    digest = sha256()
    for line in lines():
        digest.update(line)
    if path.is_file() and file_sha256(path) == digest.hexdigest():
        return
    file = NewFile(path)
    for line in lines():
        file.write(line)
    file.close()


def _manifest(log: RecordLog, side: str, tokenizer: WordPiece, books: Books) -> Manifest | None:
    """Returns the manifest of one side; None if it has no shards."""
    assert log.plan is not None
    config = log.plan.config
    if not (shards := [entry for _, entry in sorted(log.shards[side].items())]):
        return None
    return Manifest(
        format_version=FORMAT_VERSION,
        config=config,
        vocab_size=tokenizer.vocab_size,
        special_tokens=tokenizer.special,
        tokenizer_files={name: sha256(content).hexdigest() for name, content in tokenizer.files().items()},
        versions=log.plan.versions,
        input_files=len(log.plan.inputs),
        books=books,
        totals=sum_shards(shards, config.seq_length, len(config.ngram)),
        shards=tuple(shards),
    )
