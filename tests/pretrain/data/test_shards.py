"""Claims about reading folders of shards: mixtures are exact and stateless, and errors name the damaged file."""

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.manifest import Manifest, ShardEntry, load_manifest, save_manifest, sum_shards
from data_prep.shards import IndexedFile
from electra_sampler.foundation.config import ConfigError, LocalProblem
from electra_sampler.foundation.ordering import dealt, permuted
from pretrain.data.batches import BatchPlan, TrainingBatches, held_out_batches
from pretrain.data.shards import Shards, open_held_out, open_shards
from tests.conftest import REPOSITORY, flip_bit
from tests.pretrain.whole_runs import Launch, finished, run_arguments


@pytest.fixture(scope="module")
def folders(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three folders of different sizes, built in the same way as `shards_folder`."""
    root = tmp_path_factory.mktemp("mixture")
    text = shards_folder.parent / "raw"
    (root / "few.txt").write_text((text / "0.txt").read_text()[:8000])
    inputs = {"a": text / "0.txt", "b": text / "1.txt", "few": root / "few.txt"}
    for name, path in inputs.items():
        build_shards(like(shards_folder, path, root / name))
    return [root / name for name in inputs]


def like(shards_folder: Path, text: Path, output: Path, **changes: object) -> BuildOptions:
    """Options that build another text in the same way as `shards_folder`."""
    shared = load_manifest(shards_folder).config.model_dump(
        include={"seq_length", "mask_copies", "held_out", "shard_mb"}
    )
    vocab = str(shards_folder / "tokenizer")
    return BuildOptions.from_values(
        {**shared, "input": (text,), "output": output, "vocab": vocab, "workers": 1, **changes}
    )


def samples_of(shards: Shards, steps: range, size: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Folder, sequence and epoch of every sample in these steps."""
    batches = TrainingBatches(shards, BatchPlan(size, size, 1, 0), seed=5)
    index, epoch = (np.concatenate(part) for part in zip(*map(batches.sequences, steps), strict=True))
    return np.searchsorted(np.cumsum(shards.mixture.sizes), index, side="right"), index, epoch


def test_every_step_has_exactly_each_folders_share(folders: list[Path]) -> None:
    folder, _, _ = samples_of(open_shards(*folders, weights=(0.7, 0.2, 0.1)), range(300))
    per_step = np.stack([np.bincount(step, minlength=3) for step in folder.reshape(300, 40)])
    assert np.abs(per_step - np.array([28, 8, 4])).max() <= 3
    assert np.bincount(folder) == pytest.approx(np.array([0.7, 0.2, 0.1]) * 12_000, abs=2)


def test_each_folder_reads_every_sequence_once_per_own_epoch(folders: list[Path]) -> None:
    shards = open_shards(*folders, weights=(1, 1, 2))
    folder, index, epoch = samples_of(shards, range(140))
    starts = np.cumsum([0, *shards.mixture.sizes])
    reached = [int(epoch[folder == number].max()) for number in range(3)]
    assert reached[2] > 10 > reached[0] >= 1, "the small folder has had more epochs"
    for number, size in enumerate(shards.mixture.sizes):
        for value in range(reached[number]):
            seen = index[(folder == number) & (epoch == value)]
            assert sorted(seen) == list(range(starts[number], starts[number] + size))


def test_without_weights_folders_count_by_size_and_finish_their_epochs_together(folders: list[Path]) -> None:
    shards = open_shards(*folders)
    sample = np.arange(len(shards))
    index, epoch = shards.mixture.shuffled(sample, seed=1)
    assert sorted(index) == sorted(shards.mixture.in_turn(sample)) == sample.tolist()
    assert not epoch.any()


def test_rows_of_a_mixture_are_the_folders_own_sequences(folders: list[Path]) -> None:
    shards = open_shards(*folders)
    starts = np.cumsum([0, *shards.mixture.sizes])
    for number, folder in enumerate(folders):
        alone = open_shards(folder)
        own = np.arange(alone.mixture.sizes[0])
        assert all(map(np.array_equal, shards.read(starts[number] + own, own % 10), alone.read(own, own % 10)))


def test_held_out_shards_are_read_together_and_a_folder_may_have_none(folders: list[Path], tmp_path: Path) -> None:
    parts = [open_held_out(folder) for folder in folders]
    together = open_held_out(*folders)
    assert together is not None
    assert len(together) == sum(len(part) for part in parts if part)
    plan = BatchPlan(10, 5, 1, 0)
    read = [row for batch in held_out_batches(together, 10, plan, 1) for row in batch.input_ids_BL.tolist()]
    own = [row for part in parts[:2] if part for row in part.read(np.arange(10), np.zeros(10, int))[0].tolist()]
    assert all(row in own for row in read if row), "a prefix reads each folder from its beginning"
    assert open_held_out(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "name"), [({"seq_length": 16}, "seq_length"), ({"mask_copies": 3}, "mask_copies"), ({}, "tokenizer")]
)
def test_incompatible_folders_are_refused_by_name(
    changes: dict[str, object], name: str, shards_folder: Path, tmp_path: Path
) -> None:
    if name == "tokenizer":
        shutil.copytree(shards_folder / "tokenizer", tmp_path / "vocab")
        tokens = (tmp_path / "vocab" / "vocab.txt").read_text().split("\n")
        (tmp_path / "vocab" / "tokenizer.json").unlink()
        (tmp_path / "vocab" / "vocab.txt").write_text("\n".join([*tokens[:20], tokens[21], tokens[20], *tokens[22:]]))
        changes = {"vocab": str(tmp_path / "vocab")}
    build_shards(like(shards_folder, shards_folder.parent / "raw" / "0.txt", tmp_path / "other", **changes))
    said = "another vocabulary than" if name == "tokenizer" else name
    with pytest.raises(ConfigError, match=f"data: .*other has {said}.*rebuild it with the first folder") as error:
        open_shards(shards_folder, tmp_path / "other")
    assert load_manifest(shards_folder).tokenizer_sha256 not in str(error.value), "which tells nobody what to do"


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.0, 1.0), (1.0, -1.0, 1.0), (1.0, float("nan"), 1.0)])
def test_weights_are_one_positive_number_per_folder(weights: tuple[float, ...], folders: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"data_weights: got .*, expected a number above 0 .* 3 in all"):
        open_shards(*folders, weights=weights)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../shards", "is named twice"),
        ("nothing", r"nothing does not exist; name existing .*python -m data_prep.build_shards"),
    ],
)
def test_a_folder_that_is_named_twice_or_missing_is_refused(name: str, said: str, shards_folder: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        open_shards(shards_folder, shards_folder / name)


def of_another_shard(path: Path) -> None:
    """As a faulty copy might leave it."""
    shutil.copy(path.with_name(path.name.replace("00001", "00000")), path)


@pytest.fixture
def copy(shards_folder: Path, tmp_path: Path) -> Path:
    """A copy of the shards, to be damaged."""
    return shutil.copytree(shards_folder, tmp_path / "copy")


@pytest.mark.parametrize(
    ("names", "damage"),
    [
        (["shard-00001.bin"], lambda path: path.write_bytes(path.read_bytes()[:-2])),
        (["shard-00001.idx"], lambda path: path.write_bytes(path.read_bytes()[:-8])),
        (["shard-00001.bin"], lambda path: path.write_bytes(b"")),
        (["shard-00001.mask.bin"], lambda path: path.write_bytes(path.read_bytes()[:-1])),
        (["shard-00001.mask.bin"], Path.unlink),
        (["shard-00001.mask.idx"], Path.unlink),
        (["shard-00001.idx"], of_another_shard),
        (["shard-00001.mask.bin", "shard-00001.mask.idx"], of_another_shard),
        (["shard-00001.bin", "shard-00001.idx"], of_another_shard),
    ],
)
def test_a_damaged_shard_is_named_before_anything_is_read(
    names: list[str], damage: Callable[[Path], object], copy: Path
) -> None:
    for name in names:
        damage(copy / name)
    with pytest.raises(ConfigError, match="shard-00001") as caught:
        open_shards(copy)
    assert len(caught.value.problems) == 1 and "\n" not in str(caught.value)


def test_a_flipped_bit_in_an_index_is_found_on_reading_and_its_sequence_named(copy: Path) -> None:
    items = len(IndexedFile(copy / "shard-00001"))
    flip_bit(copy / "shard-00001.idx", 34 + 4 * items + 8, 2)  # the second item's offset, after header and lengths
    shards = open_shards(copy)
    first = load_manifest(copy).shards[0].sequences
    shards.read(np.array([first - 1, first + 3]), np.zeros(2, int))
    with pytest.raises(LocalProblem, match=r"shard-00001\.idx is damaged at sequence [01]"):
        shards.read(np.array([first + 1, first]), np.zeros(2, int))


def overwrite(path: Path, first: int, value: int) -> None:
    """Overwrites content without changing the size, as when a disk loses a block."""
    content = bytearray(path.read_bytes())
    content[first : first + 4096] = bytes([value]) * len(content[first : first + 4096])
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("shard-00001.bin", 0, r"does not begin with \[CLS\]"),
        ("shard-00001.bin", 255, r"does not begin with \[CLS\]|id beyond the vocabulary"),
        ("shard-00001.mask.bin", 0, "masked positions"),
        ("shard-00001.mask.bin", 255, "masked positions"),
    ],
)
def test_lost_content_is_found_on_reading_and_its_sequence_named(
    name: str, value: int, problem: str, copy: Path
) -> None:
    overwrite(copy / name, 4096, value)
    shards = open_shards(copy)
    with pytest.raises(LocalProblem, match=rf"shard-00001 is damaged: sequence \d+ .*{problem}"):
        shards.read(np.arange(len(shards)), np.zeros(len(shards), int))
    with pytest.raises(LocalProblem, match="shard-00001"):  # in the background thread too
        list(TrainingBatches(shards, BatchPlan(16, 16, 1, 0), seed=0).from_step(0, len(shards) // 16))


def test_a_missing_end_of_a_sequence_is_found_on_reading(copy: Path) -> None:
    file = IndexedFile(copy / "shard-00000")
    row = int(np.argmin(file.lengths))
    flip_bit(copy / "shard-00000.bin", int(file.offsets[row]) + 2 * int(file.lengths[row]) - 2, 1)
    with pytest.raises(LocalProblem, match=rf"sequence {row} does not end with \[SEP\]"):
        open_shards(copy).read(np.array([row]), np.array([0]))


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "tokenizer_config.json"])
def test_an_overwritten_tokenizer_is_refused_by_file(name: str, copy: Path) -> None:
    content = (copy / "tokenizer" / name).read_text()
    (copy / "tokenizer" / name).write_text(content.replace("e", "é", 1) if name == "vocab.txt" else content + "\n")
    with pytest.raises(ConfigError, match=rf"copy is damaged: .*tokenizer/{name}: missing, or changed"):
        open_shards(copy)


def test_a_manifest_whose_special_ids_differ_from_its_tokenizers_is_refused(copy: Path) -> None:
    manifest = load_manifest(copy)
    special = manifest.special_tokens.model_copy(update={"mask": 5})
    save_manifest(manifest.model_copy(update={"special_tokens": special}), copy)
    with pytest.raises(ConfigError, match=r"copy is damaged: tokenizer: .* its special ids differ"):
        open_shards(copy)


def many_times(source: Path, folder: Path, count: int) -> None:
    """A folder whose shards are all links to the first shard of another."""
    shutil.copytree(source / "tokenizer", folder / "tokenizer")
    manifest = load_manifest(source)
    first, shards = manifest.shards[0], []
    for number in range(count):
        for suffix in first.written:
            (folder / f"shard-{number:05d}{suffix}").hardlink_to(source / (first.name + suffix))
        shards.append(first.model_copy(update={"name": f"shard-{number:05d}"}))
    save_shards(manifest, shards, folder)


def save_shards(manifest: Manifest, shards: list[ShardEntry], folder: Path) -> None:
    """Writes the manifest for other shards."""
    totals = sum_shards(shards, manifest.seq_length, len(manifest.config.ngram))
    save_manifest(manifest.model_copy(update={"shards": tuple(shards), "totals": totals}), folder)


def enlarged(folder: Path, sequences: int) -> None:
    """Makes each shard of a folder one of this many sequences: empty files of the right sizes."""
    manifest = load_manifest(folder)
    lengths = {".idx": 8, ".bin": 2 * 30, ".mask.idx": 8, ".mask.bin": 4 * manifest.mask_copies}
    shards = []
    for shard in manifest.shards:
        written = {suffix: (lengths[suffix] * sequences, sha) for suffix, (_, sha) in shard.written.items()}
        for suffix, (size, _) in written.items():
            with (folder / (shard.name + suffix)).open("r+b") as file:
                file.truncate(size)
        shards.append(shard.model_copy(update={"sequences": sequences, "tokens": 30 * sequences, "written": written}))
    save_shards(manifest, shards, folder)


def test_twenty_billion_sequences_are_read_once_per_epoch(shards_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(shards_folder, tmp_path / "large", copy_function=shutil.copyfile)
    enlarged(tmp_path / "large", 10**10)
    shards = Shards(tmp_path / "large")
    size = len(shards)
    assert size == 2 * 10**10
    sample_B = np.array([0, 1, 10**9, size - 1, size])
    index_B, epoch_B = shards.mixture.shuffled(sample_B, seed=3)
    assert epoch_B.tolist() == [0, 0, 0, 0, 1]
    assert index_B[:4].tolist() == permuted(sample_B[:4], size, 3, 0).tolist()
    assert shards.mixture.in_turn(sample_B).tolist() == [0, 1, 10**9, size - 1, 0]
    both = Shards(tmp_path / "large", shards_folder)
    folder_B, number_B = dealt(sample_B[:3], both.mixture.shares)
    first, whole = both.mixture.shares[0], sum(both.mixture.shares)
    assert folder_B[2] == 0 and number_B[2] == 10**9 * first // whole


READS_EVERYTHING = """
import sys
from pathlib import Path
import numpy as np
from pretrain.data.shards import open_held_out, open_shards

def held() -> tuple[int, int]:
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "shard-" in line]
    return len(list(Path("/proc/self/fd").iterdir())), len(maps)

shards, held_out = open_shards(Path(sys.argv[1])), open_held_out(Path(sys.argv[1]))
assert len(shards._prefixes) == 1250
own = len(shards) // 1250
once = shards.read(np.arange(own), np.zeros(own, int))
order = np.random.default_rng(0).permutation(len(shards))[:4000]
most = (0, 0)
for index in np.split(order, 40):
    for ours, theirs in zip(shards.read(index, np.zeros(100, int)), once):
        assert np.array_equal(ours, theirs[index % own])
    held_out.read(index % len(held_out), np.zeros(100, int))
    most = max(most, held())
print(*most)
"""


def test_any_number_of_shards_is_read_under_256_descriptors_and_maps(shards_folder: Path, tmp_path: Path) -> None:
    for side in ("", "held_out"):
        (tmp_path / "many" / side).mkdir(parents=True)
        many_times(shards_folder / side, tmp_path / "many" / side, 1250)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    command = [sys.executable, "-c", READS_EVERYTHING, str(tmp_path / "many")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    descriptors, maps = map(int, done.stdout.split())
    assert 100 < maps < 256
    assert descriptors < 256


def test_a_damaged_shard_ends_the_command_with_one_line(copy: Path, tmp_path: Path, launch: Launch) -> None:
    for number in range(2):
        overwrite(copy / f"shard-0000{number}.mask.bin", 0, 0)
    output = finished(launch(0, *run_arguments(copy, tmp_path / "run", "batch_size=64")), code=2)
    assert "Traceback" not in output and "is damaged: sequence" in output
