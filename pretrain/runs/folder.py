"""The run folder: its description, its lock, and reading it again in later commands.

RUN/run.json          description: configuration, vocabulary, data, code and package versions
RUN/sampler.py        a copy of the sampler's file, if the run's sampler is not built in; never run
RUN/deepspeed.json    the resolved DeepSpeed configuration
RUN/tokenizer/        a copy of the shards' tokenizer
RUN/metrics.jsonl     one record per log interval and per evaluation
RUN/events.out.tf...  the same values as TensorBoard curves
RUN/checkpoints/      see checkpoint.py
RUN/lock              held by the first rank of the command that trains here
"""

import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.main import IncEx

from data_prep.masking import mask_size
from data_prep.tokens import LARGEST_VOCABULARY, SubwordTokenizer
from electra_sampler.foundation.config import ConfigError, StrictConfig, explained
from electra_sampler.foundation.files import read_object, write_atomically
from electra_sampler.foundation.locks import Held, Lock, still_held
from pretrain.config import RunConfig
from pretrain.data.remote import local_folder
from pretrain.data.shards import Shards, manifests_sha256
from pretrain.job.rank_log import read_ends
from pretrain.method.registry import LOADED, Origin

DESCRIPTION, SAMPLER, CHECKPOINTS, LOCK, STARTS = "run.json", "sampler.py", "checkpoints", "lock", "starts.jsonl"
RESTORE = "restore it from a copy, or remove it and rerun the run's command, which writes it again"
PATIENCE = 5.0
"""Seconds to wait for a folder's lock: a holder that was just killed takes a moment to end."""
BOOKKEEPING = {
    "log_every",
    "histogram_every",
    "evaluate_every",
    "evaluate_sequences",
    "checkpoint_every",
    "checkpoint_minutes",
    "keep_checkpoints",
    "keep_every",
    "deterministic",
}
"""When a run reports and saves, and whether it is deterministic: mathematics stay, so a run may resume with others."""
VERSIONS_OF = ("torch", "deepspeed", "numpy", "electra-sampler")

REPLACED = ("metrics.jsonl", "deepspeed.json", SAMPLER, "tokenizer", STARTS, "logs/rank-0000.json")
"""What a start replaces or appends to. They are a run's own if its description or a rank's record is beside them."""
IN_WORDS = {"data_sha256": "other shards", "tokenizer_sha256": "another vocabulary"}
"""How messages describe a checksum that differs."""


class RunDescription(StrictConfig):
    """Everything that determines a run's result, as saved in its `run.json`."""

    run: RunConfig
    sampler: Origin | None = None
    """The file of the objective, unless it is built in."""
    data: tuple[str, ...] = Field(min_length=1)
    """Folders of the shards, as given."""
    data_weights: tuple[float, ...] = ()
    """Relative sampling weight of each folder; empty: its number of sequences."""
    data_sha256: str
    """Checksum of the folders' manifests in order; these hold the checksum of every shard."""
    tokenizer_sha256: str
    """Checksum of the tokenizer that the shards were built with."""
    seq_length: int = Field(ge=8, le=65_535)
    one_segment: bool = False
    """No sequence of the shards has a second segment: its embedding was never trained."""
    vocab_size: int = Field(ge=1, le=LARGEST_VOCABULARY)
    mask_token_id: int = Field(ge=0)
    pad_token_id: int = Field(ge=0)
    init_from: tuple[str, ...] = ()
    """Names of the models the run started from, as given."""
    keep_optimizer: bool = False
    """The run started with Adam's state of the run in `init_from`."""
    precision: str
    """fp32, bf16 or fp16; a resume keeps it unless --deepspeed_config names another."""
    hardware: str
    """The GPU, or the CPU's instruction set, of the first rank at the newest start."""
    versions: dict[str, str] = {}

    @property
    def mask_share(self) -> float:
        """Share of the word pieces that are masked in a sequence of full length; [CLS] and [SEP] never are.

        Masked tokens that the generator sees do not count: it learns to repeat them.
        """
        masked = mask_size(self.seq_length, self.run.mask_rate) / (self.seq_length - (2 if self.one_segment else 3))
        return float(masked) * (1 - getattr(self.run.objective, "mask_keep_fraction", 0.0))

    @model_validator(mode="before")
    @classmethod
    def _has_its_sampler(cls, values: dict[str, object]) -> dict[str, object]:
        """Checks that a sampler from a file is loaded, before its settings are read."""
        if isinstance(values.get("sampler"), dict):
            with suppress(ValidationError):  # the field itself reports it
                Origin.model_validate(values["sampler"]).require_loaded()
        return values

    @field_validator("mask_token_id", "pad_token_id")
    @classmethod
    def _is_in_the_vocabulary(cls, number: int, info: ValidationInfo) -> int:
        if number >= info.data.get("vocab_size", LARGEST_VOCABULARY):
            raise ValueError(f"got {number}, expected an id below vocab_size")
        return number


def describe(
    run: RunConfig,
    shards: Shards,
    data_weights: tuple[float, ...],
    init_from: tuple[str, ...],
    keep_optimizer: bool,
    precision: str,
    hardware: str,
) -> RunDescription:
    """Returns the description of a run: configuration, shards and weights, initial checkpoints, precision and hardware,
    installed versions.
    """
    manifest, versions = shards.manifest, {"python": platform.python_version()}
    for package in VERSIONS_OF:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return RunDescription(
        run=run,
        sampler=LOADED[run.objective.name].origin if run.objective.name in LOADED else None,
        data=shards.names,
        data_weights=data_weights,
        data_sha256=manifests_sha256(shards.folders),
        tokenizer_sha256=manifest.tokenizer_sha256,
        seq_length=manifest.seq_length,
        one_segment=shards.one_segment,
        vocab_size=manifest.vocab_size,
        mask_token_id=manifest.special_tokens.mask,
        pad_token_id=manifest.special_tokens.pad,
        init_from=init_from,
        keep_optimizer=keep_optimizer,
        precision=precision,
        hardware=hardware,
        versions=versions,
    )


def differences(folder: Path, before: RunDescription | None, now: RunDescription) -> Iterator[str]:
    """Yields a problem for each difference in configuration, data and vocabulary between the run that is already in
    `folder`, if any, and this one.
    """
    changing = dict.fromkeys(("data", "precision", "hardware", "versions"), True)
    excluded: dict[str, IncEx | bool] = {"sampler": {"objective"}, "run": BOOKKEEPING, **changing}
    old, new = (dict(flat(part.model_dump(mode="json", exclude=excluded))) for part in (before or now, now))
    for key in sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key)):
        if key in IN_WORDS:
            yield (
                f"{key}: {folder} was started with {IN_WORDS[key]} than this command says; use the same --data or"
                " another --output"
            )
        else:
            yield (
                f"{key}: {folder} was started with {old.get(key)!r}, this command says {new.get(key)!r}; use the same"
                " value or another --output"
            )


def writing(folder: Path) -> AbstractContextManager[None]:
    """Turns a failed write to the run folder during start-up into a `ConfigError`.

    Later writes survive a full disk instead (run_log.py, checkpoint.py).
    """
    return explained(f"output: {folder} cannot be written to", "make room there, or name another --output", OSError)


def require_free(folder: Path) -> None:
    """Checks that no other command trains in `folder`; does not lock it, so every rank may call this.

    Raises:
        ConfigError: names the other command.
    """
    if who := still_held(folder / LOCK, PATIENCE):
        raise _in_use(folder, who)


def lock_run(folder: Path, description: RunDescription) -> Lock:
    """Locks the folder against other commands until the lock is released or this process ends.

    Raises:
        ConfigError: another command trains there, or has started a different run there in the meantime.
    """
    try:
        lock = Lock(folder / LOCK, PATIENCE)
    except Held as who:
        raise _in_use(folder, str(who)) from None
    if problems := [*differences(folder, find_run(folder), description)]:
        lock.release()
        raise ConfigError(*problems)
    return lock


def _in_use(folder: Path, who: str) -> ConfigError:
    return ConfigError(
        f"output: {folder} is in use by {who}; wait until it ends, stop it with `touch {folder / 'stop'}`, or"
        " name another --output"
    )


def write_run(folder: Path, description: RunDescription, deepspeed: Mapping[str, object]) -> None:
    """Creates the run folder with tokenizer, resolved DeepSpeed configuration and description.

    Raises:
        ConfigError: the shards' tokenizer cannot be read, or the folder cannot be written to.
    """
    tokenizer = SubwordTokenizer.load(local_folder(Path(description.data[0])) / "tokenizer")
    with writing(folder):
        tokenizer.save(folder / "tokenizer")
        write_json(folder / "deepspeed.json", deepspeed)
        if description.sampler:
            write_atomically(folder / SAMPLER, LOADED[description.sampler.name].source)
        write_json(folder / DESCRIPTION, description.model_dump(mode="json"))


def find_run(folder: Path) -> RunDescription | None:
    """Reads the description of the run in `folder`; `None` if there is no run, or if it was killed before it wrote one.

    Raises:
        ConfigError: it is damaged, or of another version; or the folder holds files that a run would replace.
    """
    started = (folder / DESCRIPTION).exists()
    if not started and (others := [name for name in REPLACED if (folder / name).exists()]) and not read_ends(folder):
        raise ConfigError(
            f"output: {folder} holds {', '.join(others)}, which no run wrote and a run would replace; move them away,"
            " or name another --output"
        )
    return read_run(folder) if started else None


def read_run(folder: Path) -> RunDescription:
    """Reads the description of the run in `folder`.

    Raises:
        ConfigError: not a run folder, or one this version cannot read.
    """
    path = folder / DESCRIPTION
    with explained(f"run: cannot read {path}", "expected a folder written by pretrain/run.py", OSError):
        return RunDescription.from_values(read_object(path, "run", RESTORE), str(path))


def data_of(description: RunDescription) -> tuple[Path, ...]:
    """Returns the folders or URLs of a run's shards, for every command that reads them after the run's start.

    Raises:
        ConfigError: they cannot be read, or hold other shards than the run was started with.
    """
    folders, names = tuple(map(Path, description.data)), ", ".join(description.data)
    with explained(
        f"data: cannot read {names}, the run's shards",
        "work in the folder where the run was started or, where the command has --data, name the shards",
        OSError,
    ):
        found = manifests_sha256(map(local_folder, folders))
    if found != description.data_sha256:
        raise ConfigError(
            f"data: {names} has other shards than the run was started with, and the run may have"
            " seen their text; restore those shards, or, where the command has --data, name held-out ones"
        )
    return folders


def write_json(path: Path, value: object) -> None:
    """Writes a value as a JSON file, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def flat(
    values: Mapping[str, Any], separator: str = ".", lists: bool = False, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yields the values of nested sections, and of `lists` if asked for, each with its path, such as `model.layers`."""
    for key, value in values.items():
        if lists and isinstance(value, list):
            value = {str(place): part for place, part in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flat(value, separator, lists, f"{prefix}{key}{separator}")
        else:
            yield prefix + key, value
