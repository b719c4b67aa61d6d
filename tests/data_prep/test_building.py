"""Claims about the steps of a build."""

import gzip
import hashlib
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.build_shards import BuildOptions, main
from data_prep.building import _find_duplicates as find_duplicates
from data_prep.building import most_units
from data_prep.chunks import divide
from data_prep.formats import Reading
from data_prep.manifest import load_manifest
from data_prep.sources import find_sources
from foundation.config import ConfigError
from tests.data_prep.conftest import contents

from .conftest import REPOSITORY, command_of
from .packers import IN_BLOCKS
from .test_build_shards import MPIRUN, needs_mpirun, processes_below, with_other_text


@pytest.fixture
def case(options, tmp_path):
    """A build of one long file, which can be truncated."""
    text = "\n\n".join(path.read_text() for path in sorted(options.input[0].iterdir()))
    (tmp_path / "in.txt").write_text(text)
    return BuildOptions(**(options.model_dump() | {"input": (tmp_path / "in.txt",), "output": tmp_path / "out"}))


def test_parts_are_removed_once_they_are_merged(case, monkeypatch):
    """During the build, parts remain only for shards that are not full yet and for chunks finished out of order."""
    seen = []

    def merge(task, config, output):
        entry = merge_parts(task, config, output)
        seen.append(len(list((output / ".build").glob("train-*.part"))))
        return entry

    from data_prep.parts import merge_parts

    monkeypatch.setattr("data_prep.building.merge_parts", merge)
    assert main(case) == 0
    most_in_a_shard = max(shard.last_chunk - shard.first_chunk + 1 for shard in load_manifest(case.output).shards)
    assert len(seen) > 5
    assert max(seen) <= most_in_a_shard + 2
    assert not (case.output / ".build").exists()


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ((10,) * 10, 1),  # together no larger than a chunk
        ((60, 60, 60), 3),  # in pairs too large for one
        ((0, 50), 1),
        ((0, 250), 3),
        ((10,) * 11, 3),  # of which at most two are needed
        ((100,) * 10, 10),
        ((1_000_000,), 10_000),
    ],
    ids=str,
)
def test_no_input_has_more_units_than_its_sizes_allow(sizes, most, tmp_path):
    for number, size in enumerate(sizes):
        (tmp_path / f"{number:02}.txt").write_text("Kalo ne.\n\n" * (size // 10))
    sources = find_sources([tmp_path])
    assert most_units(sources, 100) == most
    assert sum(1 for _ in divide(sources, 100, Reading())) <= most


def test_a_dataset_on_the_hub_may_have_any_number_of_units(tmp_path):
    (tmp_path / "a.txt").write_text("Kalo ne.")
    assert most_units(find_sources([tmp_path, Path("hub:corpus")]), 100) > 4096


def test_a_lost_record_costs_only_its_chunk(case, monkeypatch):
    from data_prep.pipeline import build_chunk

    assert main(case) == 0
    before = contents(case.output)
    log = case.output / "records.log"
    lines = log.read_bytes().splitlines(keepends=True)
    assert lines[4].split()[1:3] == [b"chunk", b"3"]
    lines[4] = lines[4].replace(b"chunk 3", b"chunk 4")
    log.write_bytes(b"".join(lines))
    built = []
    monkeypatch.setattr(
        "data_prep.pipeline.build_chunk", lambda chunk, *rest: built.append(chunk.number) or build_chunk(chunk, *rest)
    )
    assert main(case) == 0
    assert built == [3]
    assert contents(case.output) == before


def test_changed_duplicates_are_noticed_even_if_their_chunk_is_unchanged(options, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("Kalo mi ne.\n\nRu so ta.")
    (folder / "b.txt").write_text("Kalo mi ne.\n\nVu lo.")
    changes = {"input": (folder,), "output": tmp_path / "out", "dedup": "exact", "held_out": 0.0, "chunk_mb": 2e-5}
    case = BuildOptions(**(options.model_dump() | changes))
    assert main(case) == 0
    assert load_manifest(case.output).books.documents.dropped == {"duplicate": 1}
    assert main(case) == 0
    (folder / "a.txt").write_text("Kalo mi lo.\n\nRu so ta.")
    with pytest.raises(ConfigError, match=r"text of .* has changed since .* was built from it"):
        main(case)


def edit_between_passes(monkeypatch, edit):
    def find_and_edit(*arguments):
        found = find_duplicates(*arguments)
        edit()
        return found

    monkeypatch.setattr("data_prep.building._find_duplicates", find_and_edit)


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


def test_a_chunk_that_disappears_between_the_passes_is_missed(options, tmp_path, monkeypatch):
    path = tmp_path / "in.txt.gz"
    chunk, rest = (gzip.compress(b"Ka lo mi.\n\n" * count) for count in (1000, 100))
    path.write_bytes(chunk + rest)
    changes = {"input": (path,), "output": tmp_path / "out", "dedup": "exact", "chunk_mb": 0.01099}
    edit_between_passes(monkeypatch, lambda: path.write_bytes(chunk + bytes(len(rest))))
    with pytest.raises(ConfigError, match=CHANGED):
        main(BuildOptions(**(options.model_dump() | changes)))


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


def build_killed_and_resumed(case, command, whole, dedup):
    """Kills the build as soon as a unit with several chunks is half done, and resumes it; it gives the same bytes."""
    command = [*command, *command_of(case), "--dedup", dedup]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any(log.read_bytes().count(b" chunk ") > 1 for log in case.output.glob(".build/unit-*.log")):
        assert process.poll() is None
        time.sleep(0.001)
    for victim in (*processes_below(process.pid), process.pid):
        os.kill(victim, signal.SIGKILL)
    process.wait()
    assert not (case.output / "manifest.json").exists()
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert contents(case.output) == contents(whole)


@pytest.mark.parametrize("dedup", ["exact", pytest.param("none", marks=pytest.mark.long)])
def test_packed_input_builds_to_the_same_bytes_with_any_number_of_workers_or_ranks_and_kills(
    options, packed, tmp_path, dedup
):
    changes = {"input": (packed,), "chunk_mb": 0.004, "dedup": dedup}
    case = BuildOptions(**(options.model_dump() | changes | {"output": tmp_path / "one"}))
    assert main(case) == 0
    manifest = load_manifest(case.output)
    assert manifest.books.balances
    assert manifest.books.documents.read == 12 * (4 * 3 + 3 * 8)
    two = case.model_copy(update={"output": tmp_path / "two", "workers": 2})
    build_killed_and_resumed(two, [sys.executable], case.output, dedup)


@needs_mpirun
@pytest.mark.long
@pytest.mark.parametrize("pattern", ["*.bz2", "*.xz", "*.gz", "*.zst", "*.parquet"])
def test_each_kind_of_packed_input_builds_to_the_same_bytes_with_any_number_of_ranks_and_kills(
    options, packed, tmp_path, pattern
):
    changes = {"input": tuple(sorted(packed.glob(pattern))), "chunk_mb": 0.004}
    case = BuildOptions(**(options.model_dump() | changes | {"output": tmp_path / "one"}))
    assert main(case) == 0
    for workers in (2, 3):
        several = case.model_copy(update={"output": tmp_path / f"{workers}", "workers": workers})
        build_killed_and_resumed(several, [sys.executable], case.output, "none")
    ranks = case.model_copy(update={"output": tmp_path / "ranks"})
    build_killed_and_resumed(ranks, MPIRUN, case.output, "none")


def test_chunks_of_a_half_built_unit_are_not_built_again(options, packed, tmp_path, monkeypatch):
    from data_prep.pipeline import build_chunk

    changes = {"input": (packed / "one.txt.xz",), "chunk_mb": 0.01, "output": tmp_path / "out"}
    case = BuildOptions(**(options.model_dump() | changes))
    built = []

    def stop(chunk, *rest):
        if len(built) == 4:
            raise OSError("stopped")
        built.append(chunk.key)
        return build_chunk(chunk, *rest)

    monkeypatch.setattr("data_prep.pipeline.build_chunk", stop)
    with pytest.raises(OSError, match="stopped"):
        main(case)
    assert len(list(case.output.glob(".build/train-*.part"))) == len(built)
    before, built = built, []
    monkeypatch.setattr(
        "data_prep.pipeline.build_chunk", lambda chunk, *rest: built.append(chunk.key) or build_chunk(chunk, *rest)
    )
    assert main(case) == 0
    assert built
    assert not set(before) & set(built)


def test_an_earlier_versions_build_of_packed_input_is_refused_in_one_clear_line(options, packed, tmp_path):
    """An earlier version's plan names no version for packed input."""
    case = BuildOptions(**(options.model_dump() | {"input": (packed / "0.txt.gz",), "output": tmp_path / "out"}))
    assert main(case) == 0
    log = case.output / "records.log"
    first, *rest = log.read_bytes().splitlines(keepends=True)
    plan = first[17:].replace(b',"packed_input":"3"', b"")
    assert plan != first[17:]
    log.write_bytes(hashlib.sha256(plan).hexdigest()[:16].encode() + b" " + plan + b"".join(rest))
    with pytest.raises(ConfigError, match="begun by an earlier version, which cut compressed files"):
        main(case)
