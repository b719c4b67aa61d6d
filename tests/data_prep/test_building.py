"""Claims about the steps of a build."""

import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.build_shards import BuildOptions, main
from data_prep.building import _find_copies as find_copies
from data_prep.manifest import load_manifest
from data_prep.output import save_record
from data_prep.pipeline import build_shard
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import contents, finished_shards, kill_build, with_other_text
from tests.data_prep.packers import IN_BLOCKS


@pytest.fixture
def case(options, tmp_path):
    """A build of one long file, which can be truncated."""
    text = "\n\n".join(path.read_text() for path in sorted(options.input[0].iterdir()))
    (tmp_path / "in.txt").write_text(text)
    return BuildOptions(**(options.model_dump() | {"input": (tmp_path / "in.txt",), "output": tmp_path / "out"}))


def built_shards(monkeypatch):
    """The names of the shards that are built from now on, in this process."""
    names = []

    def build(name, *rest):
        names.append(name)
        return build_shard(name, *rest)

    monkeypatch.setattr("data_prep.building.build_shard", build)
    return names


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_lost_record_costs_only_its_shard(case, monkeypatch, damage):
    assert main(case) == 0
    before = contents(case.output)
    damage(case.output / "records" / "shard-00003.json")
    names = built_shards(monkeypatch)
    assert main(case) == 0
    assert names == ["shard-00003"]
    assert contents(case.output) == before


def test_changed_duplicates_are_noticed_even_if_their_chunk_is_unchanged(options, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("Kalo mi ne.\n\nRu so ta.")
    (folder / "b.txt").write_text("Kalo mi ne.\n\nVu lo.")
    changes = {"input": (folder,), "output": tmp_path / "out", "dedup": "exact", "held_out": 0.0, "shard_mb": 2e-5}
    case = BuildOptions(**(options.model_dump() | changes | {"sentences": "line"}))
    assert main(case) == 0
    assert load_manifest(case.output).books.documents.dropped == {"duplicate": 1}
    assert main(case) == 0
    (folder / "a.txt").write_text("Kalo mi lo.\n\nRu so ta.")
    with pytest.raises(ConfigError, match=r"text of .* has changed since .* was built from it"):
        main(case)


def edit_between_passes(monkeypatch, edit):
    def find_and_edit(*arguments):
        found = find_copies(*arguments)
        edit()
        return found

    monkeypatch.setattr("data_prep.building._find_copies", find_and_edit)


CHANGED = r"text of .*in\.txt.* changed during the build.*leave it unchanged and run the same command again"


@pytest.mark.parametrize("dedup", ["exact", "near"])
def test_text_edited_between_the_passes_is_refused_by_name_even_at_the_same_size_and_time(case, monkeypatch, dedup):
    case = case.model_copy(update={"dedup": dedup})
    edit_between_passes(monkeypatch, lambda: with_other_text(case.input[0]))
    with pytest.raises(ConfigError, match=CHANGED):
        main(case)
    assert not (case.output / "manifest.json").exists()
    monkeypatch.undo()
    assert main(case) == 0
    again = case.model_copy(update={"output": case.output.with_name("again")})
    assert main(again) == 0
    assert contents(case.output) == contents(again.output)


def test_a_manifest_lists_nothing_twice(built):
    values = json.loads((built / "manifest.json").read_text())
    assert not set(values) & set(values["config"])


@pytest.fixture(scope="module")
def packed(options, tmp_path_factory):
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


def test_packed_input_builds_to_the_same_bytes_with_any_number_of_workers_and_kills(options, packed, tmp_path):
    changes = {"input": (packed,), "shard_mb": 0.008, "dedup": "exact"}
    case = BuildOptions(**(options.model_dump() | changes | {"output": tmp_path / "one"}))
    assert main(case) == 0
    manifest = load_manifest(case.output)
    assert manifest.books.balances
    assert manifest.books.documents.read == 12 * (4 * 3 + 3 * 8)
    two = case.model_copy(update={"output": tmp_path / "two", "workers": 2})
    kill_build(two, lambda: finished_shards(two.output) >= 2)
    assert main(two) == 0
    assert contents(two.output) == contents(case.output)


def test_finished_shards_of_a_file_that_is_read_from_its_beginning_are_not_built_again(
    options, packed, tmp_path, monkeypatch
):
    changes = {"input": (packed / "one.txt.xz",), "output": tmp_path / "out"}
    case = BuildOptions(**(options.model_dump() | changes))
    built = built_shards(monkeypatch)
    monkeypatch.setattr("data_prep.building.save_record", stopping_after(4))
    with pytest.raises(OSError, match="stopped"):
        main(case)
    before, built[:] = built[:-1], []
    monkeypatch.setattr("data_prep.building.save_record", save_record)
    assert main(case) == 0
    assert built
    assert len(before) == 4
    assert not set(before) & set(built)


def stopping_after(count):
    """A form of `save_record` that fails after so many calls."""
    left = iter(range(count))

    def save(*arguments):
        if next(left, None) is None:
            raise OSError("stopped")
        save_record(*arguments)

    return save


def test_a_padded_file_builds_to_the_same_shards_and_anything_else_at_its_end_is_named(options, packed, tmp_path):
    [source] = packed.glob("0.txt.gz")
    shards = []
    for pad in (b"", bytes(4096), bytes(9) + b"garbage"):
        (tmp_path / source.name).write_bytes(source.read_bytes() + pad)
        changes = {"input": (tmp_path / source.name,), "output": tmp_path / f"{len(pad)}"}
        case = BuildOptions(**(options.model_dump() | changes))
        if pad.endswith(b"garbage"):
            with pytest.raises(ConfigError, match=rf"behind byte {source.stat().st_size:,} is neither another stream"):
                main(case)
        else:
            assert main(case) == 0
            shards.append(load_manifest(case.output).shards)
    assert shards[0] == shards[1] and len(shards[0]) > 1


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_the_bytes_are_the_same_with_and_without_rapidgzip(options, packed, tmp_path, monkeypatch, suffix, capsys):
    pytest.importorskip("rapidgzip", reason="needs rapidgzip")
    [path] = packed.glob(f"[12].txt{suffix}") if suffix == ".bz2" else [packed / "two.txt.gz"]
    changes = {"input": (path,), "output": tmp_path / "with"}
    case = BuildOptions(**(options.model_dump() | changes))
    assert main(case) == 0
    assert len(load_manifest(case.output).shards) > 1
    assert "rapidgzip" not in capsys.readouterr().out
    monkeypatch.setattr("data_prep.unpacking.find_spec", lambda name: None)
    without = case.model_copy(update={"output": tmp_path / "without"})
    assert main(without) == 0
    assert "only one worker can read it; for several, pip install 'electra-sampler[packed]'" in capsys.readouterr().out
    assert contents(case.output) == contents(without.output)
