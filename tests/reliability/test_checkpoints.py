"""Claims about any damage to checkpoints: an intact checkpoint is used, else the previous one, else none."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.engine.checkpoint import NotSaved, all_valid, load, newest_valid, save
from tests.pretrain.conftest import mounted
from tests.pretrain.engine.test_checkpoint import later, names, same, state_of

SAMPLED = 300
"""Number of bits tried in a file of tensors; small files are tried completely."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path, step, state_of(step), {}, keep_last=3)
    return tmp_path


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flips(content: bytes, every: int = 1) -> Iterator[bytes]:
    """Copies of the content with one bit flipped, for one bit in `every`; a step of 7 reaches all bits of a byte."""
    for place in range(0, 8 * len(content), every):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)


def test_after_any_flipped_bit_the_previous_checkpoint_is_used(folder: Path) -> None:
    path = folder / "step-00000020" / "state.json"
    content = path.read_bytes()
    for flipped in flips(content, 7):
        path.write_bytes(flipped)
        found = newest_valid(folder, say=lambda line: None)
        assert found is not None and found.step == 10
    path.write_bytes(content)
    assert newest_valid(folder, say=pytest.fail).step == 20  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors"])
def test_after_a_flipped_bit_in_the_tensors_the_previous_checkpoint_is_used(name: str, folder: Path) -> None:
    path = folder / "step-00000020" / name
    for flipped in random.Random(0).sample(list(flips(path.read_bytes())), SAMPLED):
        path.write_bytes(flipped)
        found = newest_valid(folder, say=lambda line: None)
        assert found is not None and found.step == 10


def test_a_checkpoint_under_another_steps_name_is_not_used(folder: Path) -> None:
    shutil.copytree(folder / "step-00000010", folder / "step-00000030")
    said: list[str] = []
    found = newest_valid(folder, said.append)
    assert found is not None and found.step == 20
    assert len(said) == 1 and "step-00000030 is not used: state.json is of step 10" in said[0]


def test_an_additional_file_in_a_checkpoint_changes_nothing(folder: Path) -> None:
    (folder / "step-00000020" / "notes.txt").write_text("the good one")
    assert newest_valid(folder, say=pytest.fail).step == 20  # type: ignore[union-attr]


@pytest.mark.parametrize("what", ["folder", "link to nowhere", "link to itself"])
def test_an_unreadable_file_counts_as_damage(what: str, folder: Path) -> None:
    path = folder / "step-00000020" / "weights.safetensors"
    path.unlink()
    if what == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if what == "link to itself" else "nowhere")
    said: list[str] = []
    assert newest_valid(folder, said.append).step == 10  # type: ignore[union-attr]
    assert len(said) == 1 and "weights.safetensors" in said[0]


def damage_all(folder: Path, how: str) -> None:
    for checkpoint in folder.iterdir():
        if how == "no marker":
            (checkpoint / "complete.json").unlink()
        else:
            (checkpoint / "weights.safetensors").write_bytes(bytes(10))


@pytest.mark.parametrize("how", ["no marker", "changed"])
@pytest.mark.parametrize("find", [newest_valid, lambda folder, say: [*all_valid(folder, say)]], ids=["newest", "all"])
def test_if_no_checkpoint_is_intact_that_is_an_error_and_nothing_is_touched(
    how: str,
    find: Callable[..., object],
    folder: Path,
) -> None:
    damage_all(folder, how)
    before, said = content_of(folder), []
    with pytest.raises(
        ConfigError,
        match=rf"none in {folder} is intact: step-00000020 \(.*\), step-00000010 \(.*move .* away to start over",
    ):
        find(folder, said.append)
    assert len(said) == 2 and content_of(folder) == before


def test_leftovers_of_an_interrupted_first_save_are_not_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 10, state_of(10), {}, keep_last=1)
    (tmp_path / "step-00000010").rename(tmp_path / "step-00000010.saving")
    (tmp_path / "step-00000010.saving" / "complete.json").unlink()
    assert newest_valid(tmp_path, say=pytest.fail) is None
    save(tmp_path, 10, state_of(10), {}, keep_last=1)
    assert names(tmp_path) == ["step-00000010"]


def test_folders_with_other_names_are_not_checkpoints(folder: Path) -> None:
    for name in ("step-30", "step-٠٠٠٠٠٠٣٠", "step-000000040", "step--0000050", "step-00000060 copy", "step-"):
        shutil.copytree(folder / "step-00000020", folder / name)
    assert newest_valid(folder, say=pytest.fail).step == 20  # type: ignore[union-attr]


def elsewhere(folder: Path, step: int, place: Path) -> Path:
    """Moves a checkpoint to another place and leaves a link."""
    checkpoint = folder / f"step-{step:08d}"
    place.mkdir(exist_ok=True)
    moved = checkpoint.rename(place / checkpoint.name)
    checkpoint.symlink_to(moved)
    return moved


def test_a_checkpoint_behind_a_link_is_read_and_only_the_link_is_removed(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    far = tmp_path_factory.mktemp("far")
    moved = elsewhere(folder, 20, far)
    found = newest_valid(folder, say=pytest.fail)
    assert found is not None and found.step == 20 and same(load(found)[0], state_of(20))
    before = content_of(moved)
    for step in (30, 40):
        save(folder, step, state_of(step), {}, keep_last=1, say=pytest.fail)
    assert names(folder) == ["step-00000040"] and content_of(moved) == before


@pytest.mark.parametrize("broken", ["damaged", "gone"])
def test_a_damaged_checkpoint_behind_a_link_is_replaced_and_its_target_kept(
    broken: str,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    moved = elsewhere(folder, 20, tmp_path_factory.mktemp("far"))
    if broken == "gone":
        shutil.rmtree(moved)
    else:
        (moved / "state.json").write_text("{}")
    assert newest_valid(folder, say=lambda line: None).step == 10  # type: ignore[union-attr]
    save(folder, 20, state_of(20), {}, keep_last=3, say=pytest.fail)
    assert newest_valid(folder, say=pytest.fail).step == 20  # type: ignore[union-attr]
    assert not (folder / "step-00000020").is_symlink()
    assert broken == "gone" or (moved / "state.json").read_text() == "{}"


def test_all_checkpoints_may_be_behind_a_link_and_an_unmounted_disk_is_not_a_new_run(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
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


def test_an_old_checkpoint_that_cannot_be_removed_is_reported_and_save_and_run_continue(folder: Path) -> None:
    said: list[str] = []
    with mounted(folder / "step-00000005", "64k"):
        save(folder, 30, state_of(30), {}, keep_last=1, say=said.append)
    assert said and all("step-00000005 cannot be removed (Device or resource busy)" in line for line in said)
    assert newest_valid(folder, say=pytest.fail).step == 30  # type: ignore[union-attr]
    save(folder, 40, state_of(40), {}, keep_last=1, say=pytest.fail)
    assert names(folder) == ["step-00000040"]


def test_an_interrupted_earlier_removal_is_no_obstacle(folder: Path) -> None:
    (folder / "step-00000010" / "weights.safetensors").unlink()
    save(folder, 30, state_of(30), {}, keep_last=1, say=pytest.fail)
    assert names(folder) == ["step-00000030"]


def test_a_checkpoint_of_a_later_version_is_an_error_and_nothing_is_changed(folder: Path) -> None:
    marker = folder / "step-00000020" / "complete.json"
    marker.write_bytes(later())
    before = content_of(folder)
    with pytest.raises(ConfigError, match="format version 2, expected 1; use the version of this project that wrote"):
        newest_valid(folder)
    assert content_of(folder) == before
