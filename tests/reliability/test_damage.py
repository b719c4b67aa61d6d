"""The faults of files in docs/evidence/faults.md: checkpoints, disk, shards, and changed arguments of a resume."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.train_vocab import VocabularyOptions
from data_prep.train_vocab import main as train_vocab
from pretrain.engine.checkpoint import newest_valid
from tests.pretrain.conftest import fill, mounted
from tests.pretrain.engine.checkpoints import flip_bit, truncate
from tests.pretrain.whole_runs import rank_of, wait_for_step
from tests.reliability.runs import (
    EVERY,
    STEPS,
    Launch,
    alone,
    as_killed_after,
    assert_nothing_was_lost,
    checkpoint_of,
    on_two_ranks,
    supervised,
    tell,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit flipped in weights.safetensors": lambda checkpoint: flip_bit(checkpoint / "weights.safetensors"),
    "a byte missing from optimizer.safetensors": lambda checkpoint: truncate(checkpoint / "optimizer.safetensors"),
    "state.json missing": lambda checkpoint: (checkpoint / "state.json").unlink(),
    "complete.json torn": lambda checkpoint: truncate(checkpoint / "complete.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_skips_a_damaged_checkpoint_and_says_so(
    damage: str, whole_alone: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    folder = as_killed_after(40, whole_alone, tmp_path / "run")
    assert checkpoint_of(folder, 20).is_dir()
    DAMAGES[damage](checkpoint_of(folder, 40))
    output = alone(launch, shards_folder, folder).ended(0)
    said = [line for line in output.splitlines() if "is not used" in line]
    assert len(said) == 1 and f"{checkpoint_of(folder, 40)} is not used: " in said[0]
    assert next(word for word in damage.split() if word.endswith(("tensors", "json"))) in said[0]
    assert_nothing_was_lost(folder, whole_alone)
    print(said[0])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real mounted file system with room for three checkpoints and a run's other files."""
    with mounted(tmp_path / "disk", "27m") as place:
        yield place


FEW = ("keep_checkpoints=2",)


def test_a_run_continues_on_a_full_disk_and_catches_up(
    disk: Path, whole_alone: Path, shards_folder: Path, launch: Launch
) -> None:
    folder = disk / "run"
    run = alone(launch, shards_folder, folder, also=FEW)
    wait_for_step(folder, 25)
    os.kill(rank_of(folder, 0), signal.SIGSTOP)  # on a busy machine, it would end before its disk is full
    filler = fill(disk)
    os.kill(rank_of(folder, 0), signal.SIGCONT)
    moment = time.monotonic()
    records = run.wait_for("metrics.jsonl: No space left on device; training continues", moment)
    missed = run.wait_for("no checkpoint could be written", moment)
    assert newest_valid(folder / "checkpoints", say=pytest.fail) is not None
    filler.unlink()
    run.ended(0)
    assert_nothing_was_lost(folder, whole_alone)
    tell(records=records, checkpoint=missed)


def test_a_disk_that_stays_full_ends_the_run_with_its_last_checkpoint_intact(
    disk: Path, whole_alone: Path, shards_folder: Path, launch: Launch
) -> None:
    folder = disk / "run"
    run = alone(launch, shards_folder, folder, also=FEW)
    wait_for_step(folder, 25)
    filler = fill(disk)
    output = run.ended(1)
    assert f"step {STEPS}: no checkpoint could be written in {folder}/checkpoints" in output
    found = newest_valid(folder / "checkpoints", say=pytest.fail)
    assert found is not None and found.step >= EVERY
    filler.unlink()
    alone(launch, shards_folder, folder, also=FEW).ended(0)
    assert_nothing_was_lost(folder, whole_alone)


def overwrite(path: Path) -> None:
    """Replaces every id in the second half of a file without changing its size."""
    content = bytearray(path.read_bytes())
    half = len(content) // 4 * 2
    content[half:] = bytes(byte ^ 0x55 for byte in content[half:])
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "name", "said"),
    [
        (Path.unlink, "shard-00000.bin", "is damaged: shard-00000.bin: No such file or directory"),
        (truncate, "shard-00000.bin", " bytes, expected "),
        (Path.unlink, "shard-00001.mask.idx", "is damaged: shard-00001.mask.idx: No such file or directory"),
        (Path.unlink, "manifest.json", "manifest.json"),
        (overwrite, "shard-00000.bin", "is damaged: sequence"),
    ],
    ids=["missing", "shorter", "masks missing", "manifest missing", "overwritten"],
)
def test_damaged_shards_are_named_and_end_the_command_with_2(
    damage: Callable[[Path], object], name: str, said: str, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    shards = shutil.copytree(shards_folder, tmp_path / "shards")
    damage(shards / name)
    run = on_two_ranks(launch, shards, tmp_path / "run")
    output = run.ended(2)
    errors = {line for line in output.splitlines() if "run.py: error: " in line}
    assert errors and all(said in line and str(shards) in line for line in errors), output
    assert "Traceback" not in output
    print(*errors, sep="\n")


def test_a_shard_truncated_during_a_run_ends_it_and_the_restored_shard_resumes_it(
    whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    """Reading beyond the end of a mapped file kills the process; the restart finds the shard too short."""
    shards, folder = shutil.copytree(shards_folder, tmp_path / "shards"), tmp_path / "run"
    run = supervised(launch, shards, folder)
    wait_for_step(folder, 30)
    moment = time.monotonic()
    for path in shards.glob("shard-*.bin"):
        os.truncate(path, 0)
    named = run.wait_for("supervise: rank ", moment)
    output = run.ended(2)
    assert "is damaged: shard-0000" in output
    logs = "".join(path.read_text() for path in (folder / "logs").glob("rank-*.log"))
    assert "Fatal Python error: Bus error" in logs
    tell(named=named)
    shutil.copytree(shards_folder, shards, dirs_exist_ok=True)
    on_two_ranks(launch, shards, folder).ended(0)
    assert_nothing_was_lost(folder, whole)


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ("configuration", ["run.optim.lr"]),
        ("data", ["data_sha256"]),
        ("tokenizer", ["data_sha256", "tokenizer_sha256", "vocab_size"]),
    ],
)
def test_another_configuration_data_or_tokenizer_is_refused_with_the_difference(
    changed: str, keys: list[str], whole_alone: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    folder, shards = as_killed_after(40, whole_alone, tmp_path / "run"), shards_folder
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    if changed != "configuration":
        shards = other_shards(shards_folder, tmp_path, changed)
    also = ("optim.lr=1e-5",) if changed == "configuration" else ()
    output = alone(launch, shards, folder, also=also).ended(2)
    errors = [line.removeprefix("run.py: error: ") for line in output.splitlines() if "run.py: error: " in line]
    assert [line.split(":")[0] for line in errors] == keys
    assert all("was started with" in line and "this command says" in line for line in errors)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    print(*errors, sep="\n")


def other_shards(shards: Path, folder: Path, changed: str) -> Path:
    """Shards of the same text with other masks, or with a vocabulary of another size."""
    vocab = shards.parent / "vocab"
    if changed == "tokenizer":
        vocab = folder / "vocab"
        train_vocab(VocabularyOptions(input=(shards.parent / "raw",), output=vocab, size=310))
    options = {"seq_length": 32, "held_out": 0.1, "shard_mb": 0.1, "workers": 1, "seed": 1}
    build_shards(
        BuildOptions(input=(shards.parent / "raw",), output=folder / "shards", vocab=str(vocab), **options)  # type: ignore[arg-type]
    )
    return folder / "shards"
