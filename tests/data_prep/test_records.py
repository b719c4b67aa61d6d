"""Claims about the record log: every record in it is complete, and incomplete ones are ignored."""

import shutil

import pytest

from data_prep.manifest import load_manifest
from data_prep.records import RecordLog


@pytest.fixture
def log_folder(built, tmp_path):
    shutil.copy(built / "records.log", tmp_path)
    return tmp_path


def test_the_log_of_a_build_holds_plan_chunks_and_shards(built):
    manifest, held_out = load_manifest(built), load_manifest(built / "held_out")
    with RecordLog(built, "rb") as log:
        assert log.plan.config == manifest.config
        assert len(log.plan.inputs) == manifest.input_files
        assert [record.number for record in log.chunks()] == list(range(len(log)))
        assert sum(record.train.tokens for record in log.chunks()) == manifest.totals.tokens
        assert tuple(log.shards["train"].values()) == manifest.shards
        assert tuple(log.shards["held_out"].values()) == held_out.shards
        assert log.damaged == 0


def test_records_survive_closing_and_the_last_of_a_number_counts(log_folder):
    with RecordLog(log_folder) as log:
        changed = log.chunk(1).model_copy(update={"key": "other"})
        log.add("chunk", 1, changed)
        length = len(log)
    with RecordLog(log_folder) as log:
        assert log.chunk(1) == changed
        assert len(log) == length


def test_a_log_in_order_is_not_rewritten_and_others_are_sorted(log_folder):
    path = log_folder / "records.log"
    ordered, before = path.read_bytes(), path.stat()
    with RecordLog(log_folder) as log:
        log.put_in_order()
    assert path.stat() == before
    plan, *lines = ordered.splitlines(keepends=True)
    path.write_bytes(plan + b"".join(reversed(lines)) + lines[3])
    with RecordLog(log_folder) as log:
        log.put_in_order()
        assert log.chunk(3).number == 3
    assert path.read_bytes() == ordered


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_a_truncated_end_loses_only_the_last_record(log_folder, every):
    path = log_folder / "records.log"
    *lines, last = path.read_bytes().splitlines(keepends=True)
    for end in range(0, len(last), every):
        path.write_bytes(b"".join(lines) + last[:end])
        with RecordLog(log_folder) as log:
            assert log.damaged == 0
            log.add("plan", 0, log.plan)
        with RecordLog(log_folder) as log:
            assert log.damaged == 0


@pytest.mark.parametrize("every", [509, pytest.param(67, marks=pytest.mark.long)])
def test_a_flipped_bit_loses_at_most_two_records_and_never_makes_a_wrong_one(log_folder, every):
    """Two are lost if the bit is in a line end, which joins two lines."""
    path = log_folder / "records.log"
    content = path.read_bytes()
    with RecordLog(log_folder, "rb") as log:
        whole = {record.number: record for record in log.chunks()}
    first = len(content.splitlines(keepends=True)[0])
    for bit in range(8 * first, 8 * len(content), every):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with RecordLog(log_folder, "rb") as log:
            found = {record.number: record for record in log.chunks()}
            assert log.damaged or bit // 8 == len(content) - 1
        assert found.items() <= whole.items()
        assert len(found) >= len(whole) - 2
