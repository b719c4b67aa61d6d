"""Claims about the output folder of a build and its records: each is complete, or ignored."""

import shutil

import pytest

from data_prep.manifest import Books, load_manifest
from data_prep.output import PLAN, BuildPlan, ShardRecord, load_record, locked, open_plan, refuse_another, save_record
from electra_sampler.foundation.config import ConfigError
from tests.conftest import unread


@pytest.fixture
def plan(built):
    return load_record(built, PLAN, BuildPlan)


def test_a_folder_admits_one_builder_at_a_time(tmp_path):
    with locked(tmp_path), pytest.raises(ConfigError, match="another build is writing"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_the_plan_can_be_read_before_and_after_the_manifest_is_written(built, plan, tmp_path):
    assert open_plan(tmp_path) is None
    save_record(tmp_path, PLAN, plan)
    assert open_plan(tmp_path) == open_plan(built) == plan
    assert plan.config == load_manifest(built).config


@pytest.mark.parametrize("name", ["thesis.tex", ".build/thesis.tex"])
def test_a_folder_with_foreign_files_is_refused(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match="holds files, but not the plan"):
        open_plan(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_resumed_is_refused_with_the_reason(built, tmp_path):
    shutil.copytree(built, tmp_path / "logless")
    shutil.rmtree(tmp_path / "logless" / "records")
    (tmp_path / "begun" / ".records").mkdir(parents=True)
    cases = (
        tmp_path / "logless",
        tmp_path / "begun",
    )
    for folder in cases:
        with pytest.raises(ConfigError, match=r"holds files, but not the plan of their build .*; choose an empty"):
            open_plan(folder)


def test_every_difference_is_named_with_both_values(plan, tmp_path):
    other = BuildPlan(
        config=plan.config.model_copy(update={"seq_length": 128, "seed": 7}),
        versions=plan.versions,
        inputs=plan.inputs | {"0/new.txt": 5},
    )
    with pytest.raises(ConfigError) as caught:
        refuse_another(other, plan, tmp_path)
    problems = "\n".join(caught.value.problems)
    assert "seq_length" in problems
    assert "has 64, this one 128" in problems
    assert "0/new.txt" in problems
    assert len(caught.value.problems) == 3
    refuse_another(plan, plan, tmp_path)


def test_another_punkt_model_learned_from_the_text_means_that_the_text_has_changed(plan, tmp_path):
    config = plan.config.model_copy(update={"punkt_sha256": "another"})
    with pytest.raises(ConfigError, match=r"input: the text has changed since the build in .* began .*restore it, or"):
        refuse_another(plan.model_copy(update={"config": config}), plan, tmp_path)


def test_records_whose_plan_is_damaged_are_one_clear_line(built, tmp_path):
    shutil.copytree(built / "records", tmp_path / "records")
    (tmp_path / "records" / "plan.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"plan\.json is missing or damaged"):
        open_plan(tmp_path)


def test_a_build_killed_before_its_plan_was_written_starts_again(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "plan.json.tmp").write_bytes(b"{")
    assert open_plan(tmp_path) is None


def names(folder):
    return [path.stem for path in sorted((folder / "records").glob("shard-*.json"))]


def test_the_records_of_a_build_are_its_plan_and_what_became_of_each_shard(built):
    manifest, held_out = load_manifest(built), load_manifest(built / "held_out")
    plan = load_record(built, PLAN, BuildPlan)
    assert plan.config == manifest.config
    assert len(plan.inputs) == manifest.input_files
    records = [load_record(built, name, ShardRecord) for name in names(built)]
    assert len(records) > 4
    assert sum((record.books for record in records), Books()) == manifest.books
    assert tuple(filter(None, (record.train for record in records))) == manifest.shards
    assert tuple(filter(None, (record.held_out for record in records))) == held_out.shards


def test_an_equal_record_is_not_written_again(built):
    name = names(built)[0]
    before = unread(built / "records" / f"{name}.json")
    save_record(built, name, load_record(built, name, ShardRecord))
    assert unread(built / "records" / f"{name}.json") == before


def test_a_flipped_bit_or_a_cut_loses_a_record_and_never_makes_a_wrong_one(built, tmp_path):
    (tmp_path / "records").mkdir()
    content = (built / "records" / "shard-00000.json").read_bytes()
    assert load_record(tmp_path, "shard-00000", ShardRecord) is None
    for bit in range(0, 8 * len(content), 97):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        for damaged in (flipped, content[: bit // 8]):
            (tmp_path / "records" / "shard-00000.json").write_bytes(damaged)
            assert load_record(tmp_path, "shard-00000", ShardRecord) is None
