"""Claims about the output folder of a build and its records: each is complete, or ignored."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.manifest import Books, load_manifest
from data_prep.output import PLAN, BuildPlan, ShardRecord, load_record, locked, open_plan, refuse_another, save_record
from electra_sampler.foundation.config import ConfigError
from tests.conftest import flip_bit, unread


@pytest.fixture
def plan(built: Path) -> BuildPlan:
    plan = load_record(built, PLAN, BuildPlan)
    assert plan is not None
    return plan


def test_a_folder_admits_one_builder_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ConfigError, match="another build is writing"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_the_plan_can_be_read_before_and_after_the_manifest_is_written(
    built: Path, plan: BuildPlan, tmp_path: Path
) -> None:
    assert open_plan(tmp_path) is None
    save_record(tmp_path, PLAN, plan)
    assert open_plan(tmp_path) == open_plan(built) == plan


@pytest.mark.parametrize("name", ["thesis.tex", ".build/thesis.tex", "manifest.json", ".records/plan.json"])
def test_a_folder_that_holds_other_files_or_no_plan_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=r"holds files, but not the plan of their build .*; choose an empty"):
        open_plan(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]


def test_every_difference_is_named_with_both_values(plan: BuildPlan, tmp_path: Path) -> None:
    other = BuildPlan(
        config=plan.config.model_copy(update={"seq_length": 128, "seed": 7}),
        versions=plan.versions,
        inputs=plan.inputs | {"0/new.txt": 5},
    )
    with pytest.raises(ConfigError) as caught:
        refuse_another(other, plan, tmp_path)
    assert [problem.partition("; ")[0] for problem in caught.value.problems] == [
        f"0/new.txt: the build in {tmp_path} has none, this one 5",
        f"seed: the build in {tmp_path} has 0, this one 7",
        f"seq_length: the build in {tmp_path} has 64, this one 128",
    ]
    refuse_another(plan, plan, tmp_path)


def test_another_punkt_model_learned_from_the_text_means_that_the_text_has_changed(
    plan: BuildPlan, tmp_path: Path
) -> None:
    config = plan.config.model_copy(update={"punkt_sha256": "another"})
    with pytest.raises(ConfigError, match=r"input: the text has changed since the build in .* began .*restore it, or"):
        refuse_another(plan.model_copy(update={"config": config}), plan, tmp_path)


def test_records_whose_plan_is_damaged_are_one_clear_line(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built / "records", tmp_path / "records")
    (tmp_path / "records" / "plan.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"plan\.json is missing or damaged"):
        open_plan(tmp_path)


def test_a_build_killed_before_its_plan_was_written_starts_again(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "plan.json.tmp").write_bytes(b"{")
    assert open_plan(tmp_path) is None


def test_the_records_of_a_build_are_its_plan_and_what_became_of_each_shard(built: Path, plan: BuildPlan) -> None:
    manifest, held_out = load_manifest(built), load_manifest(built / "held_out")
    assert plan.config == manifest.config
    assert len(plan.inputs) == manifest.input_files
    names = sorted(path.stem for path in (built / "records").glob("shard-*.json"))
    records = [record for name in names if (record := load_record(built, name, ShardRecord))]
    assert len(records) == len(names) > 4
    assert sum((record.books for record in records), Books()) == manifest.books
    assert tuple(filter(None, (record.train for record in records))) == manifest.shards
    assert tuple(filter(None, (record.held_out for record in records))) == held_out.shards


def test_an_equal_record_is_not_written_again(built: Path, plan: BuildPlan) -> None:
    before = unread(built / "records" / "plan.json")
    save_record(built, PLAN, plan)
    assert unread(built / "records" / "plan.json") == before


@pytest.mark.parametrize("damage", [flip_bit, lambda path: os.truncate(path, 200), Path.unlink])
def test_a_record_that_is_damaged_cut_short_or_missing_is_none(
    built: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(built / "records", tmp_path / "records")
    damage(tmp_path / "records" / "shard-00000.json")
    assert load_record(tmp_path, "shard-00000", ShardRecord) is None
