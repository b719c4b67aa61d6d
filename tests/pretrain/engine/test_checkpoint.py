"""Claims about checkpoints: each is complete or does not count, though processes are killed and disks fail."""

import json
import math
import os
import random
import resource
import shutil
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
    NotSaved,
    any_saved,
    load,
    load_weights,
    marker_of,
    newest_valid,
    require_fit,
    save,
)
from tests.data_prep.conftest import contents
from tests.pretrain.conftest import mounted
from tests.pretrain.engine.checkpoints import state_of
from tests.pretrain.engine.engine_worker import same_states
from tests.warm import Warm

SAVER = """
import itertools, sys
from pathlib import Path
from pretrain.engine.checkpoint import newest_valid, save
from tests.pretrain.engine.checkpoints import state_of
folder = Path(sys.argv[1])
found = newest_valid(folder)
for step in itertools.count(found.step + 1 if found else 1):
    save(folder, step, state_of(step, size=300_000), {"step": step}, keep_last=2)
    print(step, flush=True)
"""


FLIPS = 300
"""Bits tried in each file."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path, step, state_of(step), {"updates": step - 1}, keep_last=3)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def used(folder: Path) -> int | None:
    """The step of the checkpoint that a run would use, found without a remark."""
    found = newest_valid(folder, say=pytest.fail)
    return found and found.step


def test_a_checkpoint_is_loaded_as_it_was_saved(folder: Path) -> None:
    (folder / "step-00000020" / "notes.txt").write_text("the good one")  # another file changes nothing
    found = newest_valid(folder)
    assert found is not None
    state, extra = load(found)
    assert (found.step, extra) == (20, {"updates": 19})
    assert same_states(state, state_of(20))
    assert torch.equal(load_weights(found)["b.bias"], state_of(20).weights["b.bias"])
    assert len({path.stat().st_mode for path in found.folder.iterdir()}) == 1  # whoever reads one may read all


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    (tmp_path / "step-00005000.copy").mkdir()
    (tmp_path / "step-00005000.saving").mkdir()
    assert used(tmp_path) is None
    assert not any_saved(tmp_path)
    assert used(tmp_path / "missing") is None


def test_folders_with_other_names_are_not_checkpoints(folder: Path) -> None:
    for name in ("step-30", "step-٠٠٠٠٠٠٣٠", "step-000000040", "step--0000050", "step-00000060 copy", "step-"):
        shutil.copytree(folder / "step-00000020", folder / name)
    assert used(folder) == 20


def test_only_the_newest_are_kept_and_what_interrupted_saves_and_removals_left_is_no_obstacle(folder: Path) -> None:
    for left in ("step-00000015.saving", "step-00000030.saving", "step-00000005"):
        shutil.copytree(folder / "step-00000010", folder / left)
        (folder / left / "weights.safetensors").unlink()
    save(folder, 30, state_of(30), {}, keep_last=2, say=pytest.fail)
    assert names(folder) == ["step-00000020", "step-00000030"]
    assert used(folder) == 30


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
    assert used(folder) == 20


def assert_the_previous_is_used(folder: Path, name: str, newest: str = "step-00000020") -> None:
    """Asserts that one line names the damaged file of the newest checkpoint, and that the one before it is used."""
    said: list[str] = []
    found = newest_valid(folder, said.append)
    assert found is not None and found.step == 10
    (line,) = said
    assert f"{newest} is not used: " in line and name in line


def without_file(path: Path) -> Path:
    path.unlink()
    return path


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncation": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "deletion": Path.unlink,
    "folder": lambda path: without_file(path).mkdir(),
    "link to nowhere": lambda path: without_file(path).symlink_to("nowhere"),
    "link to itself": lambda path: without_file(path).symlink_to(path),
}


@pytest.mark.parametrize("name", [*FILES, MARKER])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_any_file_is_reported_and_the_previous_checkpoint_used(folder: Path, name: str, damage: str) -> None:
    DAMAGES[damage](folder / "step-00000020" / name)
    assert_the_previous_is_used(folder, name)


@pytest.mark.parametrize("name", [*FILES, MARKER])
def test_after_any_flipped_bit_the_previous_checkpoint_is_used(folder: Path, name: str) -> None:
    path = folder / "step-00000020" / name
    content = path.read_bytes()
    for place in random.Random(0).sample(range(8 * len(content)), FLIPS):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert_the_previous_is_used(folder, name)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_weight_that_is_not_finite_is_refused_by_name_although_its_checksum_is_right_and_so_is_a_removed_file(
    folder: Path, value: float
) -> None:
    """As another program might have written it."""
    state = state_of(30)
    state.weights["b.bias"][1, 2] = value
    checkpoint = save(folder, 30, state, {}, keep_last=1)
    with pytest.raises(ConfigError, match=r"step-00000030 holds NaN or infinity in b\.bias, expected numbers; move it"):
        load(checkpoint)
    shutil.rmtree(checkpoint.folder)  # as a run that still trains removes it
    with pytest.raises(ConfigError, match=r"step-00000030 can no longer be read .*, run the command again"):
        load_weights(checkpoint)


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"a": (2,)}, r"1 parameter, first b: saved None, expected \(3,\)"),
        ({"a": (2,), "b": (3,), "c": (1,)}, r"1 parameter, first c: saved \(1,\), expected None"),
        ({"a": (1,), "b": (4,)}, r"2 parameters, first a: saved \(1,\), expected \(2,\)"),
    ],
    ids=["missing", "new", "of another shape"],
)
def test_saved_weights_that_do_not_fit_a_model_are_named(saved: dict[str, tuple[int, ...]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        require_fit({name: torch.zeros(shape) for name, shape in saved.items()}, {"a": (2,), "b": (3,)})


def test_a_checkpoint_under_another_steps_name_is_not_used(folder: Path) -> None:
    (folder / "step-00000020").rename(folder / "step-00000030")
    assert_the_previous_is_used(folder, "state.json is of step 20", "step-00000030")


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
    assert_the_previous_is_used(folder, f"{MARKER} is missing or not as it was written")


def test_a_checkpoint_of_a_later_version_is_an_error_and_nothing_is_changed(folder: Path) -> None:
    (folder / "step-00000020" / MARKER).write_bytes(sealed({"format_version": 2, "shards": [{"nested": None}]}))
    before = contents(folder)
    with pytest.raises(ConfigError, match="format version 2, expected 1; use the version of this project that wrote"):
        newest_valid(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("damage", ["truncation", "deletion"])
def test_if_no_checkpoint_is_intact_that_is_an_error_and_nothing_is_touched(folder: Path, damage: str) -> None:
    for checkpoint in folder.iterdir():
        DAMAGES[damage](checkpoint / MARKER)
    before, said = contents(folder), list[str]()
    with pytest.raises(
        ConfigError,
        match=rf"none in {folder} is intact: step-00000020 \(.*\), step-00000010 \(.*move .* away to start over",
    ):
        newest_valid(folder, said.append)
    assert len(said) == 2 and contents(folder) == before


@pytest.fixture
def moved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of step 20, moved to another disk; a link is in its place."""
    checkpoint = folder / "step-00000020"
    far = checkpoint.rename(tmp_path_factory.mktemp("far") / checkpoint.name)
    checkpoint.symlink_to(far)
    return far


def test_a_checkpoint_behind_a_link_is_read_and_only_the_link_is_removed(folder: Path, moved: Path) -> None:
    assert used(folder) == 20
    before = contents(moved)
    for step in (30, 40):
        save(folder, step, state_of(step), {}, keep_last=1, say=pytest.fail)
    assert names(folder) == ["step-00000040"] and contents(moved) == before


@pytest.mark.parametrize("broken", ["damaged", "gone"])
def test_a_damaged_checkpoint_behind_a_link_is_replaced_and_its_target_kept(
    folder: Path, moved: Path, broken: str
) -> None:
    if broken == "gone":
        shutil.rmtree(moved)
    else:
        (moved / "state.json").write_text("{}")
    save(folder, 20, state_of(20), {}, keep_last=3, say=pytest.fail)
    assert used(folder) == 20
    assert not (folder / "step-00000020").is_symlink()
    assert broken == "gone" or (moved / "state.json").read_text() == "{}"


def test_all_checkpoints_may_be_behind_a_link_and_an_unmounted_disk_is_not_a_new_run(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    link = tmp_path_factory.mktemp("run") / "checkpoints"
    link.symlink_to(folder)
    save(link, 30, state_of(30), {}, keep_last=1, say=pytest.fail)
    assert names(folder) == ["step-00000030"] and link.is_symlink()
    folder.rename(folder.with_name("unmounted"))
    with pytest.raises(ConfigError, match=rf"checkpoints: {link} is a link to {folder}, which does not exist"):
        newest_valid(link)
    with pytest.raises(NotSaved, match="no checkpoint could be written"):
        save(link, 40, state_of(40), {}, keep_last=1)
    link.unlink()
    link.write_text("no folder")
    with pytest.raises(ConfigError, match=rf"checkpoints: {link} cannot be read \(Not a directory\)"):
        newest_valid(link)


def test_an_old_checkpoint_that_cannot_be_removed_is_reported_and_the_next_save_removes_it(folder: Path) -> None:
    said: list[str] = []
    with mounted(folder / "step-00000005", "64k"):
        save(folder, 30, state_of(30), {}, keep_last=1, say=said.append)
    assert said and all("step-00000005 cannot be removed (Device or resource busy)" in line for line in said)
    assert used(folder) == 30
    save(folder, 40, state_of(40), {}, keep_last=1, say=pytest.fail)
    assert names(folder) == ["step-00000040"]


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
    assert used(folder) == 20


def test_a_failing_disk_is_reported_and_leaves_the_last_good_checkpoint(folder: Path) -> None:
    """Needs no mounted file system: files may not grow beyond 100 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(NotSaved, match=r"(?i)file too large|os error 27"):
            save(folder, 30, state_of(30, size=100_000), {}, keep_last=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert used(folder) == 20


def test_after_a_kill_at_any_moment_the_last_finished_checkpoint_is_complete(tmp_path: Path) -> None:
    moments, folder = random.Random(0), tmp_path / "checkpoints"
    (tmp_path / "saver.py").write_text(SAVER)
    for _ in range(3):
        saver = Warm(tmp_path / "saver.py", folder)
        announced = int(saver.stdout.readline())
        time.sleep(moments.uniform(0, 0.1))
        saver.kill()
        announced = max([announced, *(int(line) for line in saver.stdout if line.endswith("\n"))])
        saver.wait()
        found = newest_valid(folder, say=pytest.fail)
        assert found is not None
        assert found.step >= announced
        assert same_states(load(found)[0], state_of(found.step, size=300_000))
