"""Claims about checkpoints: each is complete or does not count, though processes are killed and disks fail."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import sealed
from pretrain.engine.checkpoint import (
    FILES,
    MARKER,
    EngineState,
    NotSaved,
    any_saved,
    load,
    load_weights,
    marker_of,
    newest_valid,
    save,
)

SAVER = """
import itertools, sys
from pathlib import Path
from pretrain.engine.checkpoint import newest_valid, save
from tests.pretrain.engine.test_checkpoint import state_of
folder = Path(sys.argv[1])
found = newest_valid(folder)
for step in itertools.count(found.step + 1 if found else 1):
    save(folder, step, state_of(step, size=300_000), {"step": step}, keep_last=2)
    print(step, flush=True)
"""


def state_of(step: int, size: int = 5) -> EngineState:
    """A state whose tensors all depend on the step."""
    tensors = {"a.weight": torch.full((size,), float(step)), "b.bias": torch.full((2, 3), -float(step))}
    moments = {key: {name: tensor + 0.5 for name, tensor in tensors.items()} for key in ("exp_avg", "exp_avg_sq")}
    return EngineState(step, {"cur_scale": 2.0**step, "cur_iter": step}, tensors, moments)


def same(one: EngineState, other: EngineState) -> bool:
    def flat(state: EngineState) -> dict[str, torch.Tensor]:
        named = {"weights": state.weights, **state.moments}
        return {f"{kind}/{name}": tensor for kind, part in named.items() for name, tensor in part.items()}

    left, right = flat(one), flat(other)
    numbers_agree = (one.adam_steps, one.loss_scale) == (other.adam_steps, other.loss_scale)
    return numbers_agree and left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path, step, state_of(step), {"updates": step - 1}, keep_last=3)
    return tmp_path


def sign(checkpoint: Path) -> None:
    """Rewrites the marker for the current sizes and checksums of the files."""
    (checkpoint / MARKER).write_bytes(marker_of(checkpoint))


def later() -> bytes:
    """A marker as a later version may write it, with a valid checksum."""
    return sealed({"format_version": 2, "shards": [{"nested": None}]})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_loaded_as_it_was_saved(folder: Path) -> None:
    found = newest_valid(folder)
    assert found is not None
    state, extra = load(found)
    assert found.step == 20
    assert same(state, state_of(20))
    assert extra == {"updates": 19}
    assert torch.equal(load_weights(found)["b.bias"], state_of(20).weights["b.bias"])


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    (tmp_path / "step-00005000.copy").mkdir()
    assert newest_valid(tmp_path) is None
    assert not any_saved(tmp_path)
    assert newest_valid(tmp_path / "missing") is None


def test_only_the_newest_are_kept(folder: Path) -> None:
    (folder / "step-00000015.saving").mkdir()
    (folder / "step-00000005").mkdir()
    save(folder, 30, state_of(30), {}, keep_last=2)
    assert names(folder) == ["step-00000020", "step-00000030"]


def test_saving_and_removing_flush_to_disk_in_an_order_that_always_keeps_one_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files before their marker, all before the rename, and nothing is removed before a new one is complete."""
    checkpoints = tmp_path / "run" / "checkpoints"
    done = []

    def telling(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def told(first: object, *others: object, **more: object) -> None:
            path = Path(f"/proc/self/fd/{first}").readlink() if isinstance(first, int) else str(first)
            done.append(f"{name} {os.path.relpath(path, tmp_path)}")
            real(first, *others, **more)

        return told

    monkeypatch.setattr(os, "fsync", telling("flush", os.fsync))
    monkeypatch.setattr(os, "rename", telling("rename", os.rename))
    monkeypatch.setattr(shutil, "rmtree", telling("remove", shutil.rmtree))
    for step in (1, 2):
        save(checkpoints, step, state_of(step), {}, keep_last=1)
    made = ["flush .", "flush run"]
    first, second = (
        [
            *(f"flush run/checkpoints/step-0000000{step}.saving/{name}" for name in (*FILES, "complete.json")),
            f"flush run/checkpoints/step-0000000{step}.saving",
            f"rename run/checkpoints/step-0000000{step}.saving",
            "flush run/checkpoints",
        ]
        for step in (1, 2)
    )
    old = "run/checkpoints/step-00000001"
    assert done == [*made, *first, *second, f"remove {old}"]


def test_every_nth_is_kept_permanently_beside_the_newest(tmp_path: Path) -> None:
    for step in range(10, 90, 10):
        save(tmp_path, step, state_of(step), {}, keep_last=2, keep_every=30)
    assert names(tmp_path) == [f"step-{step:08d}" for step in (30, 60, 70, 80)]


def test_a_run_resumed_from_an_earlier_step_removes_later_checkpoints_and_no_others(folder: Path) -> None:
    save(folder, 15, state_of(15), {}, keep_last=1)
    assert names(folder) == ["step-00000015"]


def test_saving_a_step_again_keeps_an_intact_checkpoint_and_replaces_a_damaged_one(folder: Path) -> None:
    kept = folder / "step-00000020" / "weights.safetensors"
    before = kept.stat().st_ino
    save(folder, 20, state_of(20), {}, keep_last=3)
    assert kept.stat().st_ino == before
    kept.write_bytes(b"")
    save(folder, 20, state_of(20), {}, keep_last=3)
    assert newest_valid(folder, say=pytest.fail).step == 20  # type: ignore[union-attr]


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json", "complete.json"])
@pytest.mark.parametrize("damage", [flip_bit, truncate, Path.unlink], ids=["bit flip", "truncation", "deletion"])
def test_damage_to_any_file_is_reported_and_the_previous_checkpoint_used(
    folder: Path, name: str, damage: object
) -> None:
    damage(folder / "step-00000020" / name)  # type: ignore[operator]
    said: list[str] = []
    found = newest_valid(folder, said.append)
    assert found is not None
    assert found.step == 10
    assert len(said) == 1
    assert "step-00000020" in said[0]
    assert name in said[0]


@pytest.mark.parametrize("name", ["weights.safetensors", "complete.json"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_refused(folder: Path, name: str) -> None:
    path = folder / "step-00000020" / name
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        path.unlink()
        make(path)
        with pytest.raises(ConfigError, match=f"checkpoints: {path} is a pipe, a socket or a device; give a file"):
            newest_valid(folder)


@pytest.mark.parametrize("content", [b"", b"null", b"[" * 100_000, bytes(500), b"without a checksum"])
def test_a_marker_that_is_not_sealed_is_damage(folder: Path, content: bytes) -> None:
    if content == b"without a checksum":
        content = json.dumps(json.loads(marker_of(folder / "step-00000020")) | {"sha256": None}).encode()
    (folder / "step-00000020" / MARKER).write_bytes(content)
    said: list[str] = []
    assert newest_valid(folder, said.append).step == 10  # type: ignore[union-attr]
    assert f"{MARKER} is missing or not as it was written" in said[0]


@pytest.mark.parametrize("size", [80_000, 1_000_000], ids=["in the second file", "in the first file"])
def test_a_full_disk_is_reported_and_leaves_the_last_good_checkpoint_and_no_leftovers(
    small_disk: Path, size: int
) -> None:
    folder = small_disk / "checkpoints"
    save(folder, 20, state_of(20, size=20_000), {}, keep_last=1)
    free = shutil.disk_usage(small_disk).free
    with pytest.raises(NotSaved, match=r"step 30: .*No space left.* needs .* MB, and 0\.8 MB are free; earlier"):
        save(folder, 30, state_of(30, size=size), {}, keep_last=1)
    assert shutil.disk_usage(small_disk).free == free
    found = newest_valid(folder, say=pytest.fail)
    assert found is not None and same(load(found)[0], state_of(20, size=20_000))


def test_a_failing_disk_is_reported_and_leaves_the_last_good_checkpoint(folder: Path) -> None:
    """Needs no mounted file system: files may not grow beyond 100 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(NotSaved, match=r"(?i)file too large|os error 27"):
            save(folder, 30, state_of(30, size=100_000), {}, keep_last=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = newest_valid(folder, say=pytest.fail)
    assert found is not None
    assert found.step == 20


def test_after_a_kill_at_any_moment_the_last_finished_checkpoint_is_complete(tmp_path: Path) -> None:
    moments = random.Random(0)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
        ) as saver:
            assert saver.stdout is not None
            announced = int(saver.stdout.readline())
            time.sleep(moments.uniform(0, 0.1))
            saver.send_signal(signal.SIGKILL)
            announced = max([announced, *(int(line) for line in saver.stdout if line.endswith("\n"))])
        found = newest_valid(tmp_path, say=pytest.fail)
        assert found is not None
        assert found.step >= announced
        assert same(load(found)[0], state_of(found.step, size=300_000))
