"""Claims about the plan of the shards."""

import gzip
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.planning import plan_shards
from data_prep.sources import Source, find_sources
from tests.data_prep.conftest import many_documents, words


@pytest.mark.parametrize(
    ("text", "shards"),
    [(1e6, 1), (6e6, 1), (12e6, 2), (50e6, 8), (100e6, 8), (500e6, 8), (1e9, 16), (2e10, 128), (1e13, 10_000)],
)
def test_the_number_of_shards_suits_the_input(text: float, shards: int) -> None:
    sources = [Source("a.txt", f"0/{number}", int(text / 40_000)) for number in range(40_000)]
    assert len(plan_shards(sources, 0)) == pytest.approx(shards, rel=0.03, abs=1)


def test_numbers_and_keys_are_distinct_and_do_not_depend_on_the_location_of_the_input(tmp_path: Path) -> None:
    keys = []
    for place in ("here", "there/deeper"):
        folder = tmp_path / place / "corpus"
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "a.txt").write_text("\n\n".join(many_documents(20)))
        (folder / "b.txt").write_text("b")
        for given in (folder, folder / "sub" / "*.txt"):
            shards = [shard for task in plan_shards(find_sources([given]), 1000) for shard in task]
            assert [shard.number for shard in shards] == list(range(len(shards)))
            keys.append([shard.ranges[0].key for shard in shards])
            assert len(set(keys[-1])) == len(shards) > 3
    assert keys[:2] == keys[2:]
    assert keys[0][0] == "0/b.txt@0"


def test_small_files_share_a_shard_in_their_order(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02d}.txt").write_text(f"Text {number:05d}")
    tasks = plan_shards(find_sources([tmp_path]), 50)
    assert [len(shard.ranges) for task in tasks for shard in task] == [5] * 6
    assert [part.source for task in tasks for shard in task for part in shard.ranges] == find_sources([tmp_path])
    assert sum(shard.size for task in tasks for shard in task) == 30 * 10


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_one_worker_writes_all_shards_of_a_file_that_cannot_be_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("data_prep.unpacking.find_spec", lambda name: None)
    text = "\n\n".join(words(2000, 300)).encode()
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(text))
    [task] = plan_shards(find_sources([tmp_path]), len(text) / 4)
    assert len(task) in (4, 5)


def test_a_table_is_divided_by_its_row_groups(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": many_documents(300)}), tmp_path / "a.parquet", row_group_size=20)
    tasks = plan_shards(find_sources([tmp_path]), 20_000)
    bounds = [(shard.ranges[0].start, shard.ranges[0].end) for (shard,) in tasks]
    assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == 15


def test_a_plan_holds_names_and_ranges_and_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(words(200, 600)))
    tasks = plan_shards(find_sources([tmp_path]), 2000)
    assert len(tasks) > 10
    assert len(pickle.dumps(tasks)) < 1000 * len(tasks)
