"""Checkpoints: full tensors by name, whatever ZeRO stage and world size wrote them, checksummed, no pickle.

    RUN/checkpoints/step-00001000/weights.safetensors     fp32 master weights
                                  optimizer.safetensors   exp_avg/NAME and exp_avg_sq/NAME, fp32
                                  state.json              step, Adam's count, loss scale, the run's own
                                  complete.json           size and sha256 of each file; written last

A checkpoint without its marker, or with a file that differs from it, does not count: the one before is used.
A save writes beside, flushes to the disk and renames: at any instant the last good checkpoint is whole.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_prep.config import ConfigError

WEIGHTS, OPTIMIZER, STATE, MARKER = (
    "weights.safetensors",
    "optimizer.safetensors",
    "state.json",
    "complete.json",
)
FORMAT_VERSION = 1
_SAVING, _REMOVING = ".saving", ".removing"


@dataclass
class EngineState:
    """What an engine needs to go on bitwise; tensors are fp32, on the CPU, and on the first rank alone."""

    adam_steps: int
    """Updates Adam has counted."""
    loss_scale: dict[str, float]
    """The dynamic loss scaler's numbers; empty without one."""
    weights: dict[str, Tensor]
    """Master weights by parameter name; a shared parameter stands once."""
    moments: dict[str, dict[str, Tensor]]
    """`exp_avg` and `exp_avg_sq`, each by parameter name."""

    def mismatch(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """What is wrong with it for a model whose parameters have these shapes, if anything is."""
        saved = {name: tuple(tensor.shape) for name, tensor in self.weights.items()}
        different = sorted(name for name in shapes.keys() | saved if shapes.get(name) != saved.get(name))
        if not different:
            return None
        first = different[0]
        return (
            f"checkpoint: {len(different)} parameters differ from this model's, first {first}: saved"
            f" {saved.get(first)}, expected {shapes.get(first)}; use the configuration it was saved under"
        )


class Checkpoint(NamedTuple):
    """A checkpoint on disk, verified when it was found."""

    folder: Path
    step: int


class NotSaved(RuntimeError):
    """The disk did not take a checkpoint; nothing of it is left, and those before are as they were."""


def save(
    folder: Path, step: int, state: EngineState, extra: dict[str, Any], *, keep_last: int, keep_every: int = 0
) -> Checkpoint:
    """Writes the checkpoint of `step` under `folder` and removes those older than the newest `keep_last`.

    Those of steps that `keep_every` divides stay for good (0: none). `extra` is what the run remembers besides the
    engine, as JSON. An undamaged checkpoint of this step stays; later ones, left by a run that went back to an earlier
    one, are removed. For the first rank alone.

    Raises:
        NotSaved: the disk is full, or fails otherwise.
    """
    final = folder / f"step-{step:08d}"
    if _damage(final) is None:
        return Checkpoint(final, step)
    partial = folder / (final.name + _SAVING)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(partial, step, state, extra)
        shutil.rmtree(final, ignore_errors=True)  # if there, it is damaged
        partial.rename(final)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise NotSaved(f"step {step}: {_why_not(folder, state, error)}") from error
    _prune(folder, step, keep_last, keep_every)
    return Checkpoint(final, step)


def _write(partial: Path, step: int, state: EngineState, extra: dict[str, Any]) -> None:
    """The files of a checkpoint, on the disk when this returns."""
    partial.mkdir(parents=True)
    moments = {f"{key}/{name}": tensor for key, named in state.moments.items() for name, tensor in named.items()}
    numbers = {"step": step, "adam_steps": state.adam_steps, "loss_scale": state.loss_scale, "extra": extra}
    save_file(state.weights, partial / WEIGHTS)
    save_file(moments, partial / OPTIMIZER)
    (partial / STATE).write_text(json.dumps(numbers, indent=1))
    files = {name: _fingerprint(partial / name) for name in (WEIGHTS, OPTIMIZER, STATE)}
    for name in files:
        _flush(partial / name)
    (partial / MARKER).write_text(json.dumps({"format_version": FORMAT_VERSION, "files": files}, indent=1))
    _flush(partial / MARKER)
    _flush(partial)


def _why_not(folder: Path, state: EngineState, error: Exception) -> str:
    tensors = [state.weights, *state.moments.values()]
    needed = sum(tensor.nbytes for named in tensors for tensor in named.values())
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    before = next((path for _, path in _by_step(folder)), None)
    return (
        f"no checkpoint could be written in {folder} ({error}): it takes {needed / 1e6:,.1f} MB, and"
        f" {free / 1e6:,.1f} MB are free; " + (f"{before} is as it was" if before else "there is none before it")
    )


def newest_valid(folder: Path, say: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest checkpoint that is as it was written, byte for byte; says which it passes over, and why."""
    return next(all_valid(folder, say), None)


def all_valid(folder: Path, say: Callable[[str], None] = print) -> Iterator[Checkpoint]:
    """Every checkpoint that is as it was written, the newest first; each is verified when it is asked for."""
    for step, candidate in _by_step(folder):
        problem = _damage(candidate)
        if problem is None:
            yield Checkpoint(candidate, step)
        else:
            say(f"checkpoint {candidate} is not used: {problem}; looking for the one before")


def load(checkpoint: Checkpoint) -> tuple[EngineState, dict[str, Any]]:
    """The engine's state and the run's `extra`, as `save` was given them."""
    numbers = json.loads((checkpoint.folder / STATE).read_text())
    moments: dict[str, dict[str, Tensor]] = {}
    for key_and_name, tensor in load_file(checkpoint.folder / OPTIMIZER).items():
        key, _, name = key_and_name.partition("/")
        moments.setdefault(key, {})[name] = tensor
    state = EngineState(numbers["adam_steps"], numbers["loss_scale"], load_weights(checkpoint), moments)
    return state, numbers["extra"]


def load_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The fp32 weights alone, by parameter name; a shared parameter stands once."""
    return load_file(checkpoint.folder / WEIGHTS)


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    """Finished checkpoints, newest first; a save or removal that was cut short has another name."""
    names = {path: path.name.removeprefix("step-") for path in folder.glob("step-*")}
    return sorted(((int(text), path) for path, text in names.items() if text.isdecimal()), reverse=True)


def _damage(checkpoint: Path) -> str | None:
    """What differs between a checkpoint and its marker, or `None`.

    Raises:
        ConfigError: a checkpoint of another format, which is not damage.
    """
    try:
        marker = json.loads((checkpoint / MARKER).read_text())
        version, files = marker["format_version"], marker["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MARKER} is missing or unreadable"
    if version != FORMAT_VERSION:
        raise ConfigError(f"{checkpoint}: got format version {version}, expected {FORMAT_VERSION}; use its own code")
    for name in (WEIGHTS, OPTIMIZER, STATE):
        expected, path = files.get(name), checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if expected is None or path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes, expected {expected and expected['bytes']}"
        if _fingerprint(path) != expected:
            return f"the content of {name} has changed"
    return None


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _flush(path: Path) -> None:
    """Has the operating system put a file or folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prune(folder: Path, step: int, keep_last: int, keep_every: int) -> None:
    """Takes a name away before its files, so that a removal cut short leaves no half checkpoint."""
    checkpoints = _by_step(folder)
    kept = [number for number, _ in checkpoints if number <= step]
    kept = kept[:keep_last] + [number for number in kept if keep_every and number % keep_every == 0]
    for number, path in checkpoints:
        if number not in kept:
            path.rename(path.with_name(path.name + _REMOVING))
    for path in folder.glob("step-*"):
        if path.name.endswith((_SAVING, _REMOVING)):
            shutil.rmtree(path)
