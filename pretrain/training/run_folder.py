"""The folder of a run: what it is made of, its log, and what a later command needs to know.

RUN/run.json          description: configuration, vocabulary, data, code and package versions
RUN/deepspeed.json    the resolved DeepSpeed configuration
RUN/tokenizer/        that of the shards, written anew
RUN/metrics.jsonl     one record a log interval or evaluation
RUN/events.out.tf...  the same as curves
RUN/checkpoints/      see checkpoint.py
RUN/lock              held by the first rank of the command that trains here
"""

import importlib.metadata
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import field_validator

from data_prep.tokens import WordPiece
from foundation.config import ConfigError, StrictConfig
from foundation.files import make_folder, write_atomically
from foundation.locks import Held, Lock, still_held
from pretrain.config import RunConfig
from pretrain.data.shards import Shards

DESCRIPTION, CHECKPOINTS, LOCK = "run.json", "checkpoints", "lock"
PATIENCE = 5.0
"""Seconds that a command waits for a folder's lock: a holder that was killed takes a moment to end."""
BOOKKEEPING = {
    "log_every",
    "histogram_every",
    "evaluate_every",
    "evaluate_sequences",
    "checkpoint_every",
    "keep_checkpoints",
    "keep_every",
}
"""How often a run reports and saves: nothing of its mathematics, so it may resume with other values."""
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
    one_segment: bool = False
    """No sequence of the shards has a second segment: its embedding was never trained."""
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
    manifest, versions = shards.manifest, {"python": platform.python_version()}
    for package in VERSIONS_OF:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return RunDescription(
        run=run,
        data=tuple(map(str, shards.folders)),
        data_weights=data_weights,
        data_sha256=shards.sha256(),
        tokenizer_sha256=manifest.tokenizer_sha256,
        seq_length=manifest.seq_length,
        one_segment=shards.one_segment,
        vocab_size=manifest.vocab_size,
        mask_token_id=manifest.special_tokens.mask,
        pad_token_id=manifest.special_tokens.pad,
        init_from=init_from,
        versions=versions,
    )


def require_same_run(folder: Path, description: RunDescription) -> None:
    """Refuses to go on with a run of another configuration, data or vocabulary; a new folder is always fine.

    Raises:
        ConfigError: names each difference.
    """
    if not (folder / DESCRIPTION).is_file():
        return
    excluded: Any = {"data": True, "versions": True, "run": BOOKKEEPING}
    before, now = (
        dict(flat(part.model_dump(mode="json", exclude=excluded))) for part in (read_run(folder), description)
    )
    changed = [
        f"{key}: {folder} was started with {before.get(key)!r}, this command says {now.get(key)!r};"
        " use the same value or another --output"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise ConfigError(*changed)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Around what a start writes to the run's folder; later a full disk is waited out (run_log.py, checkpoint.py).

    Raises:
        ConfigError: the system does not take it.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"output: {folder} cannot be written to ({error.strerror}); make room there, or name another --output"
        ) from None


def require_free(folder: Path) -> None:
    """Refuses a folder in which another command trains; takes nothing, so that every rank may ask.

    Raises:
        ConfigError: names that command.
    """
    if who := still_held(folder / LOCK, PATIENCE):
        raise _in_use(folder, who)


def lock_run(folder: Path, description: RunDescription) -> Lock:
    """Keeps every other command out of the folder until it is released, or this process ends.

    Raises:
        ConfigError: another one trains there, or has begun another run since this one looked.
    """
    try:
        lock = Lock(folder / LOCK, PATIENCE)
    except Held as who:
        raise _in_use(folder, str(who)) from None
    try:
        require_same_run(folder, description)
    except ConfigError:
        lock.release()
        raise
    return lock


def _in_use(folder: Path, who: str) -> ConfigError:
    return ConfigError(
        f"output: {folder} is in use by {who}; wait for its end or stop it by `touch {folder / 'stop'}`, or name"
        " another --output"
    )


def write_run(folder: Path, description: RunDescription, deepspeed: dict[str, Any]) -> None:
    """Creates the folder with what describes the run.

    Raises:
        ConfigError: the shards' tokenizer cannot be read.
    """
    tokenizer = WordPiece.load(Path(description.data[0]) / "tokenizer")
    make_folder(folder)
    tokenizer.save(folder / "tokenizer")
    write_json(folder / "deepspeed.json", deepspeed)
    write_json(folder / DESCRIPTION, description.model_dump(mode="json"))


def read_run(folder: Path) -> RunDescription:
    """The description of the run in `folder`.

    Raises:
        ConfigError: not a run folder, or one this version cannot read.
    """
    path = folder / DESCRIPTION
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, dict):
            raise ValueError("no JSON object")
    except OSError as error:
        raise ConfigError(
            f"run: cannot read {path} ({error.strerror}); expected a folder written by pretrain/run.py"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"run: {path} is damaged ({error}); put a copy in its place, or remove it and start the run's command"
            " again, which writes it anew"
        ) from None
    return RunDescription.from_values(values, str(path))


def write_json(path: Path, value: Any) -> None:
    """Writes a value as a JSON file that is either absent or whole."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested sections, each under its path: `model.layers`."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
