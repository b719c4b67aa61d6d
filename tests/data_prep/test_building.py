"""Claims about the steps of a build."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.build_shards import BuildOptions, main
from data_prep.building import _find_copies as find_copies
from data_prep.manifest import load_manifest
from data_prep.output import save_record
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import again, contents, finished_shards, kill_build, with_other_text
from tests.data_prep.packers import IN_BLOCKS


@pytest.fixture
def case(options: BuildOptions, tmp_path: Path) -> BuildOptions:
    """A build of one long file."""
    text = "\n\n".join(path.read_text() for path in sorted(options.input[0].iterdir()))
    (tmp_path / "in.txt").write_text(text)
    return again(options, tmp_path / "out", input=(tmp_path / "in.txt",))


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_lost_record_costs_only_its_shard(
    case: BuildOptions, begun: list[str], damage: Callable[[Path], object]
) -> None:
    assert main(case) == 0
    before = contents(case.output)
    damage(case.output / "records" / "shard-00003.json")
    begun.clear()
    assert main(case) == 0
    assert begun == ["shard-00003"]
    assert contents(case.output) == before


def test_changed_duplicates_are_noticed_even_if_their_chunk_is_unchanged(options: BuildOptions, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("Kalo mi ne.\n\nRu so ta.")
    (folder / "b.txt").write_text("Kalo mi ne.\n\nVu lo.")
    changes = {"input": (folder,), "dedup": "exact", "held_out": 0.0, "shard_mb": 2e-5, "sentences": "line"}
    case = again(options, tmp_path / "out", **changes)
    assert main(case) == 0
    assert load_manifest(case.output).books.documents.dropped == {"duplicate": 1}
    (folder / "a.txt").write_text("Kalo mi lo.\n\nRu so ta.")
    with pytest.raises(ConfigError, match=r"text of .* has changed since .* was built from it"):
        main(case)


@pytest.mark.parametrize("dedup", ["exact", "near"])
def test_text_edited_between_the_passes_is_refused_by_name_even_at_the_same_size_and_time(
    case: BuildOptions, monkeypatch: pytest.MonkeyPatch, dedup: str
) -> None:
    case = case.model_copy(update={"dedup": dedup})

    def find_and_edit(*arguments: Any) -> Any:
        found = find_copies(*arguments)
        with_other_text(case.input[0])
        return found

    monkeypatch.setattr("data_prep.building._find_copies", find_and_edit)
    changed = r"text of .*in\.txt.* changed during the build.*leave it unchanged and run the same command again"
    with pytest.raises(ConfigError, match=changed):
        main(case)
    assert not (case.output / "manifest.json").exists()
    monkeypatch.undo()
    assert main(case) == 0
    afresh = again(case, case.output.with_name("afresh"))
    assert main(afresh) == 0
    assert contents(case.output) == contents(afresh.output)


def test_a_manifest_lists_nothing_twice(built: Path) -> None:
    values = json.loads((built / "manifest.json").read_text())
    assert not set(values) & set(values["config"])


@pytest.fixture(scope="module")
def packed(options: BuildOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus in files larger than a chunk: in blocks, in one stream, and in row groups."""
    folder = tmp_path_factory.mktemp("packed")
    texts = [path.read_text() for path in sorted(options.input[0].iterdir())]
    for number, (suffix, pack) in enumerate(IN_BLOCKS.items()):
        (folder / f"{number}.txt{suffix}").write_bytes(pack("\n\n".join(texts[number : number + 3]).encode()))
    (folder / "one.txt.xz").write_bytes(lzma.compress("\n\n".join(texts).encode()))
    (folder / "two.txt.gz").write_bytes(gzip.compress("\n\n".join(texts[::-1]).encode()))
    documents = [document for text in texts for document in text.split("\n\n")]
    parquet.write_table(pyarrow.table({"text": documents}), folder / "table.parquet", row_group_size=9)
    return folder


def test_every_format_and_packing_builds_to_the_same_bytes_with_any_number_of_workers_and_kills(
    options: BuildOptions, formats: tuple[Path, ...], packed: Path, tmp_path: Path
) -> None:
    case = again(options, tmp_path / "one", input=(*formats, packed), shard_mb=0.008, dedup="exact")
    assert main(case) == 0
    books = load_manifest(case.output).books
    assert books.balances
    assert books.documents.read == 12 * (5 + 4 * 3 + 3 * 8)
    kept = {name: share.documents for name, share in books.inputs.items()}
    assert kept == {"0 tables": 24, "1 wiki": 24, "2 text": 12, f"3 {packed.name}": 12 * 4}
    two = again(case, tmp_path / "two", workers=2)
    kill_build(two, lambda: finished_shards(two.output) >= 2)
    assert main(two) == 0
    assert contents(two.output) == contents(case.output)


def test_finished_shards_of_a_file_that_is_read_from_its_beginning_are_not_built_again(
    options: BuildOptions, packed: Path, tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = again(options, tmp_path / "out", input=(packed / "one.txt.xz",))
    monkeypatch.setattr("data_prep.building.save_record", stopping_after(4))
    with pytest.raises(OSError, match="stopped"):
        main(case)
    monkeypatch.setattr("data_prep.building.save_record", save_record)
    assert main(case) == 0
    assert begun[4] == begun[5], "the shard without a record"
    assert len(begun) == 1 + len(set(begun))


def stopping_after(count: int) -> Callable[..., None]:
    """A form of `save_record` that fails after so many calls."""
    left = iter(range(count))

    def save(*arguments: Any) -> None:
        if next(left, None) is None:
            raise OSError("stopped")
        save_record(*arguments)

    return save


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_the_bytes_are_the_same_with_and_without_rapidgzip(
    options: BuildOptions,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rapidgzip", reason="needs rapidgzip")
    [path] = packed.glob(f"[12].txt{suffix}") if suffix == ".bz2" else [packed / "two.txt.gz"]
    case = again(options, tmp_path / "with", input=(path,))
    assert main(case) == 0
    assert len(load_manifest(case.output).shards) > 1
    assert "rapidgzip" not in capsys.readouterr().out
    monkeypatch.setattr("data_prep.unpacking.find_spec", lambda name: None)
    without = again(case, tmp_path / "without")
    assert main(without) == 0
    assert "only one worker can read it; for several, pip install 'electra-sampler[packed]'" in capsys.readouterr().out
    assert contents(case.output) == contents(without.output)
