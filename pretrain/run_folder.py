"""The folder of a run: what it is made of, its log, and what a later command needs to know.

RUN/run.json          description: configuration, vocabulary, data, code and package versions
RUN/deepspeed.json    the resolved DeepSpeed configuration
RUN/tokenizer/        copied from the shards
RUN/metrics.jsonl     one record a log interval or evaluation
RUN/tensorboard/      the same as curves
RUN/checkpoints/      see checkpoint.py
"""

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import field_validator

from data_prep.config import ConfigError, StrictConfig
from data_prep.shards import write_atomically
from pretrain.config import RunConfig
from pretrain.shards import Shards

DESCRIPTION, CHECKPOINTS = "run.json", "checkpoints"
MAY_CHANGE = (
    "data",
    "run.log_every",
    "run.histogram_every",
    "run.evaluate_every",
    "run.evaluate_sequences",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.keep_every",
)
"""What a resumed run may have otherwise than before without being another run."""

VERSIONS_OF = ("torch", "deepspeed", "numpy", "electra-sampler")


class RunDescription(StrictConfig):
    """What decides a run's result, kept beside it."""

    run: RunConfig
    data: tuple[str, ...]
    """Folders of the shards, as given."""
    data_weights: tuple[float, ...] = ()
    """How often each was sampled, relative to the others; none: as often as it has sequences."""
    data_sha256: str
    """Of the folders' manifests in order, which hold the checksum of every shard."""
    tokenizer_sha256: str
    """Of the tokenizer the shards were made with."""
    seq_length: int
    vocab_size: int
    mask_token_id: int
    pad_token_id: int
    init_from: tuple[str, ...] = ()
    """Names of the pair the run started from, as given."""
    versions: dict[str, str] = {}

    @field_validator("data", mode="before")
    @classmethod
    def _was_one_folder(cls, data: Any) -> Any:
        return (data,) if isinstance(data, str) else data  # as runs wrote it before folders could mix


def describe(
    run: RunConfig, shards: Shards, data_weights: tuple[float, ...] = (), init_from: tuple[str, ...] = ()
) -> RunDescription:
    """The description of a run of `run` on these shards."""
    manifest = shards.manifest
    return RunDescription(
        run=run,
        data=tuple(map(str, shards.folders)),
        data_weights=data_weights,
        data_sha256=shards.sha256(),
        tokenizer_sha256=manifest.tokenizer_sha256,
        seq_length=manifest.seq_length,
        vocab_size=manifest.vocab_size,
        mask_token_id=manifest.special_tokens.mask,
        pad_token_id=manifest.special_tokens.pad,
        init_from=init_from,
        versions={"python": platform.python_version()} | {name: _version(name) for name in VERSIONS_OF},
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def require_same_run(folder: Path, description: RunDescription) -> None:
    """Refuses to go on with a run of another configuration, data or vocabulary; a new folder is always fine.

    Raises:
        ConfigError: names each difference.
    """
    if not (folder / DESCRIPTION).is_file():
        return
    before, now = (
        dict(_flat(part.model_dump(mode="json", exclude={"versions"}))) for part in (read_run(folder), description)
    )
    changed = [
        f"{key}: {folder} was started with {before.get(key)!r}, this command says {now.get(key)!r};"
        " use the same value or another --output"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in MAY_CHANGE
    ]
    if changed:
        raise ConfigError(*changed)


def require_folder(path: Path, option: str = "output") -> None:
    """Refuses a path, given as this option, that can be no folder to write to; makes nothing.

    Raises:
        ConfigError: it is a file, or would lie below one; or it cannot be written to.
    """
    if not (existing := existing_part(path)).is_dir():
        raise ConfigError(f"{option}: got {path}, expected a folder, but {existing} is none; name another or remove it")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: got {path}, but {existing} cannot be written to; name another folder")


def existing_part(path: Path) -> Path:
    """The path itself or, of what it would lie in, the nearest that is there."""
    return next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))


def write_run(folder: Path, description: RunDescription, deepspeed: dict[str, Any]) -> None:
    """Creates the folder with what describes the run."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(Path(description.data[0]) / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
    write_json(folder / "deepspeed.json", deepspeed)
    write_json(folder / DESCRIPTION, description.model_dump(mode="json"))


def read_run(folder: Path) -> RunDescription:
    """The description of the run in `folder`.

    Raises:
        ConfigError: not a run folder, or one this version cannot read.
    """
    path = folder / DESCRIPTION
    try:
        return RunDescription.from_values(json.loads(path.read_text()), str(path))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"run: cannot read {path} ({reason}); expected a folder written by pretrain/run.py") from None


def write_json(path: Path, value: Any) -> None:
    """Writes a value as a JSON file that is either absent or whole."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
