"""Claims about the records of a build: each is complete, or ignored."""

from data_prep.manifest import Books, load_manifest
from data_prep.output import PLAN, BuildPlan, ShardRecord, load_record, save_record
from tests.electra_sampler.foundation.test_files import unread


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
