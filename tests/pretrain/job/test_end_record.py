"""Claims about the records of why ranks ended; test_watchdog.py and tests/reliability have real ranks."""

import os
import socket
from pathlib import Path

import pytest
import torch

from pretrain.job.processes import World
from pretrain.job.rank_log import EndRecord, Reason, first_cause, read_records, write_record
from pretrain.job.watchdog import Watchdog


def ends(*reasons: Reason | None) -> list[EndRecord]:
    return [EndRecord(rank, f"node{rank}", 7, "now", reason) for rank, reason in enumerate(reasons)]


@pytest.mark.parametrize(
    ("reasons", "rank"),
    [
        (("lost", None, "lost"), 1),
        (("lost", "error", "lost"), 1),
        ((None, "error"), 1),  # the launcher killed the first because of the second
        (("lost", "hang", "hang"), 1),
        (("lost", "lost"), 0),
        (("stopped", "stopped"), None),
        (("done", "done"), None),
        ((None,), 0),
        ((), None),
    ],
    ids=str,
)
def test_the_rank_that_ended_the_job_is_distinguished_from_those_that_ended_because_of_it(
    reasons: tuple[Reason | None, ...], rank: int | None
) -> None:
    cause = first_cause(ends(*reasons))
    assert (cause.rank if cause else None) == rank


def test_a_rank_without_a_reason_was_probably_killed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    write_record(tmp_path, EndRecord.of(3)._replace(reason="hang", sentence="no progress"))
    write_record(tmp_path, EndRecord.of(3))
    (record,) = read_records(tmp_path)
    assert (record.name, record.process) == (f"rank 3 on {socket.gethostname()}", os.getpid())
    assert record.sentence == "exited without a message (probably killed)"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    record = EndRecord.of(3)._replace(reason="error", exit_code=1, step=7, sentence="failed: no\x1b\nroom")
    write_record(tmp_path, record)
    assert read_records(tmp_path) == [record]


def test_a_rank_whose_folder_cannot_be_written_still_ends(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    watchdog = Watchdog(World(0, 1, 0, torch.device("cpu")), 600, tmp_path)
    watchdog.record("done", 0, "ended with exit code 0")
    assert read_records(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"rank": 0}', '{"rank": 0, "later": 1}', "\udcff"], ids=ascii)
def test_a_damaged_record_is_ignored(text: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0000.json").write_bytes(os.fsencode(text))
    write_record(tmp_path, EndRecord.of(1))
    assert [record.rank for record in read_records(tmp_path)] == [1]
