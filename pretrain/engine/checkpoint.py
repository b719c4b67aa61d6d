"""Checkpoints: full tensors by name, independent of ZeRO stage and world size, with checksums and without pickle.

    RUN/checkpoints/step-00001000/weights.safetensors     fp32 master weights
                                  optimizer.safetensors   exp_avg/NAME and exp_avg_sq/NAME, fp32
                                  state.json              step, Adam's step count, loss scale, the loop's own state
                                  complete.json           the marker: size and sha256 of each file; written last

The marker is sealed with its own checksum, so damage to any bit of a checkpoint is found. A checkpoint without its
marker, or with a file that differs from it, is skipped, and the previous one is used. If there are checkpoints but none
is intact, the run ends with an error instead of starting over. A checkpoint may be a symbolic link to a larger disk. A
save writes to a temporary folder, flushes it to the disk and renames it, so the last good checkpoint is intact at any
moment.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_sampler.foundation.config import ConfigError, counted, explained
from electra_sampler.foundation.files import (
    file_sha256,
    flush,
    make_folder,
    read_file,
    remove,
    require_file_or_folder,
    sealed,
    take_mode,
    unsealed,
)

WEIGHTS, OPTIMIZER, STATE = FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")
MARKER = "complete.json"
FORMAT_VERSION = 1
_SAVING = ".saving"


@dataclass
class EngineState:
    """The engine's state, enough to resume bitwise. Tensors are fp32, on the CPU, and only on the first rank."""

    adam_steps: int
    """Adam's step count."""
    loss_scale: dict[str, float]
    """State of the dynamic loss scaler; empty without one."""
    weights: dict[str, Tensor]
    """Master weights by parameter name; shared parameters are stored once."""
    moments: dict[str, dict[str, Tensor]]
    """`exp_avg` and `exp_avg_sq`, each by parameter name."""


class Checkpoint(NamedTuple):
    """A checkpoint on disk, verified when it was found."""

    folder: Path
    step: int


class NotSaved(RuntimeError):
    """Raised if a checkpoint cannot be written; its partial files are removed, earlier checkpoints are unchanged."""


def save(
    folder: Path,
    step: int,
    state: EngineState,
    extra: dict[str, Any],
    *,
    keep_last: int,
    keep_every: int = 0,
    say: Callable[[str], None] = print,
) -> Checkpoint:
    """Writes the checkpoint of `step` under `folder` and removes old ones; first rank only.

    The newest `keep_last` checkpoints are kept; every `keep_every` steps (0: never) one is kept permanently.
    `extra` is the loop's own state, as JSON. If an intact checkpoint of this step exists, it is kept instead. Later
    steps' checkpoints, left when a run fell back to an earlier one, are removed. `say` reports what cannot be removed.

    Raises:
        NotSaved: the disk is full, or writing fails otherwise.
    """
    final = folder / _name(step)
    if _damage(final, step) is None:
        return Checkpoint(final, step)
    partial = folder / (final.name + _SAVING)
    try:
        remove(partial)
        make_folder(folder)
        _write(partial, step, state, extra)
        remove(final)  # if it exists, it is damaged
        partial.rename(final)
        flush(folder)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            remove(partial)
        tensors = (state.weights, *state.moments.values())
        needed = sum(tensor.nbytes for named in tensors for tensor in named.values())
        free = shutil.disk_usage(next(part for part in (folder, *folder.parents) if os.path.exists(part))).free  # noqa: PTH110
        raise NotSaved(
            f"step {step}: no checkpoint could be written in {folder} ({error}): it needs {needed / 1e6:,.1f} MB, and"
            f" {free / 1e6:,.1f} MB are free; earlier ones are unchanged"
        ) from error
    _prune(folder, step, keep_last, keep_every, say)
    return Checkpoint(final, step)


def _write(partial: Path, step: int, state: EngineState, extra: dict[str, Any]) -> None:
    """Writes the files of a checkpoint and flushes them to the disk."""
    partial.mkdir()
    moments = {f"{key}/{name}": tensor for key, named in state.moments.items() for name, tensor in named.items()}
    numbers = {"step": step, "adam_steps": state.adam_steps, "loss_scale": state.loss_scale, "extra": extra}
    save_file(state.weights, partial / WEIGHTS)
    save_file(moments, partial / OPTIMIZER)
    (partial / STATE).write_text(json.dumps(numbers, indent=1))
    for name in FILES:
        take_mode(partial / name, partial / STATE)  # safetensors writes for the owner alone, whatever the umask
        flush(partial / name)
    (partial / MARKER).write_bytes(marker_of(partial))
    flush(partial / MARKER)
    flush(partial)


def any_saved(folder: Path) -> bool:
    """Returns whether there are checkpoints, intact or not.

    Raises:
        ConfigError: the folder is unreadable.
    """
    return bool(_by_step(folder))


def newest_valid(folder: Path, say: Callable[[str], None] = print) -> Checkpoint | None:
    """Returns the newest intact checkpoint, or `None` if there are none; reports those it skips, and why.

    Raises:
        ConfigError: see `all_valid`.
    """
    return next(all_valid(folder, say), None)


def all_valid(
    folder: Path, say: Callable[[str], None] = print, wanted: Callable[[int], bool] = lambda step: True
) -> Iterator[Checkpoint]:
    """Yields the intact checkpoints of `wanted` steps, newest first, each verified only when it is reached.

    Raises:
        ConfigError: there are checkpoints but none is intact, one is of a later version, or the folder is unreadable.
    """
    damaged, checkpoints = [], _by_step(folder)
    for step, candidate in checkpoints:
        if not wanted(step):
            continue
        problem = _damage(candidate, step)
        if problem is None:
            yield Checkpoint(candidate, step)
        else:
            say(f"checkpoint {candidate} is not used: {problem}")
            damaged.append(f"{candidate.name} ({problem})")
    if checkpoints and len(damaged) == len(checkpoints):
        raise ConfigError(
            f"checkpoints: none in {folder} is intact: {', '.join(damaged)}; make one readable, restore one from a"
            f" copy, or move {folder} away to start over; nothing was changed"
        )


def load(checkpoint: Checkpoint) -> tuple[EngineState, dict[str, Any]]:
    """Returns the engine's state and the loop's `extra`, as they were passed to `save`."""
    numbers = json.loads((checkpoint.folder / STATE).read_text())
    moments: dict[str, dict[str, Tensor]] = {}
    for key_and_name, tensor in load_file(checkpoint.folder / OPTIMIZER).items():
        key, _, name = key_and_name.partition("/")
        moments.setdefault(key, {})[name] = tensor
    state = EngineState(numbers["adam_steps"], numbers["loss_scale"], load_weights(checkpoint), moments)
    return state, numbers["extra"]


def load_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Returns only the fp32 weights, by parameter name; shared parameters are stored once.

    Raises:
        ConfigError: one is not finite, or the file cannot be read.
    """
    with explained(
        f"checkpoint: {checkpoint.folder} can no longer be read",
        "if its run has removed it since, run the command again, or train with a larger keep_checkpoints",
        OSError,
    ):
        weights = load_file(checkpoint.folder / WEIGHTS)
    if broken := [name for name, weight in weights.items() if not all(end.isfinite() for end in weight.aminmax())]:
        raise ConfigError(
            f"checkpoint: {checkpoint.folder} holds NaN or infinity in {broken[0]}, expected numbers; move it away, and"
            " an earlier one is used"
        )
    return weights


def require_fit(
    weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], source: object = "the saved state"
) -> None:
    """Checks that weights, named by their `source`, fit a model with these parameter shapes.

    Raises:
        ConfigError: they do not.
    """
    saved = {name: tuple(weight.shape) for name, weight in weights.items()}
    if different := sorted(name for name in shapes.keys() | saved if shapes.get(name) != saved.get(name)):
        first, number = different[0], counted(len(different), "parameter")
        raise ConfigError(
            f"checkpoint: {source} differs from this model in {number}, first {first}: saved {saved.get(first)},"
            f" expected {shapes.get(first)}; use the configuration, or restore the run.json, that it was saved with"
        )


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    """Returns finished checkpoints, newest first; interrupted saves have other names and are left out.

    Raises:
        ConfigError: the folder exists but cannot be read, or is a broken link.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        if not folder.is_symlink():
            return []
        raise ConfigError(f"checkpoints: {folder} is a link to {folder.readlink()}, which does not exist") from None
    except OSError as error:
        raise ConfigError(f"checkpoints: {folder} cannot be read ({error.strerror}), expected a folder") from None
    numbers = {name: name.removeprefix("step-") for name in names}
    steps = [int(number) for name, number in numbers.items() if number.isdecimal() and name == _name(int(number))]
    return [(step, folder / _name(step)) for step in sorted(steps, reverse=True)]


def _damage(checkpoint: Path, step: int) -> str | None:
    """Returns how the checkpoint of a step differs from its marker, or `None` if it is intact.

    Raises:
        ConfigError: another version of this project wrote it, which is not damage, or a file is a pipe or a device.
    """
    try:
        said = json.loads(unsealed(read_file(checkpoint / MARKER, "checkpoints")))
    except (OSError, ValueError):
        return f"{MARKER} is missing or not as it was written"
    if said["format_version"] != FORMAT_VERSION:
        raise ConfigError(
            f"{checkpoint}: got a checkpoint of format version {said['format_version']}, expected {FORMAT_VERSION}; use"
            " the version of this project that wrote it"
        )
    for name, written in said["files"].items():
        try:
            if _fingerprint(checkpoint / name) != written:
                return f"the content of {name} has changed"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    if (found := json.loads((checkpoint / STATE).read_bytes())["step"]) != step:
        return f"{STATE} is of step {found}"
    return None


def marker_of(checkpoint: Path) -> bytes:
    """Returns the content of a marker (`complete.json`) for the files now in this checkpoint folder."""
    files = {name: _fingerprint(checkpoint / name) for name in FILES}
    return sealed({"format_version": FORMAT_VERSION, "files": files})


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"bytes": require_file_or_folder(path, "checkpoints").st_size, "sha256": file_sha256(path)}


def _prune(folder: Path, step: int, keep_last: int, keep_every: int, say: Callable[[str], None]) -> None:
    """Removes old checkpoints and the leftovers of interrupted saves; a half-removed checkpoint lacks files, so it is
    never used.
    """
    checkpoints = _by_step(folder)
    kept = [number for number, _ in checkpoints if number <= step]
    kept = kept[:keep_last] + [number for number in kept if keep_every and number % keep_every == 0]
    old = [path for number, path in checkpoints if number not in kept]
    for path in (*old, *folder.glob(f"step-*{_SAVING}")):
        try:
            remove(path)
        except OSError as error:
            say(f"WARNING: {path} cannot be removed ({error.strerror}); the next save will try again")
