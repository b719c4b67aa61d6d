"""Claims about each rank's log and the record of its end; test_watchdog.py and tests/reliability have real ranks."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pretrain.job.processes import World
from pretrain.job.rank_log import EndRecord, Reason, first_cause, read_ends, write_record
from pretrain.job.watchdog import Watchdog
from tests.conftest import REPOSITORY

PROGRAM = """
import os, signal, sys
from pathlib import Path
from pretrain.job.rank_log import keep_rank_log
keep_rank_log(Path(sys.argv[1]), 3)
print("a line, and", end=" ")
print("its end")
print("an error", file=sys.stderr)
{end}
"""
FULL = """
import contextlib, warnings
keep_rank_log(Path(sys.argv[1]), 3)
with open(sys.argv[1] + "/filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
    while True:
        filler.write(bytes(1 << 12))
warnings.warn("w" * 5000)
print("x" * 5000, file=sys.stderr)  # more than is left of the log's last block
"""

LIBRARIES = """
import logging, sys, warnings
from pathlib import Path
own = logging.getLogger("DeepSpeed")  # as DeepSpeed makes its own: a handler on the terminal, and none above it
own.propagate = False
own.setLevel(logging.INFO)
own.addHandler(logging.StreamHandler(sys.stdout))
both = logging.getLogger("both")
both.addHandler(logging.StreamHandler())
from pretrain.job.rank_log import keep_rank_log
keep_rank_log(Path(sys.argv[1]), 3)
own.info("remark 1")
own.warning("remark 2")
both.warning("remark 3")
logging.getLogger("made.later").warning("remark 4")
warnings.warn("remark 5")
print("of the run")
own.error("mistake 1")
both.error("mistake 2")
"""


def run(folder: Path, program: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """What a rank said, and its log."""
    command = [sys.executable, "-c", program, str(folder)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    return finished, (folder / "logs" / "rank-0003.log").read_bytes().decode()


def test_a_ranks_output_goes_to_terminal_and_log_with_every_start_marked(tmp_path: Path) -> None:
    for _ in range(2):
        finished, log = run(tmp_path, PROGRAM.format(end="raise ValueError('nothing moved')"))
        assert finished.stdout == "a line, and its end\n"
        assert finished.stderr.startswith("an error\nTraceback") and "nothing moved" in finished.stderr
    assert len(re.findall(r"^--- \S+ rank 3 on \S+, process \d+$", log, re.MULTILINE)) == 2
    assert log.count("a line, and its end\nan error\nTraceback") == 2
    assert log.count("ValueError: nothing moved") == 2


def test_control_characters_from_elsewhere_reach_neither_terminal_nor_log(tmp_path: Path) -> None:
    hostile = r"print('node\x1b[2J\x9b\u202e\nend', flush=True); raise ValueError('a\rb')"
    finished, log = run(tmp_path, PROGRAM.format(end=hostile))
    shown = r"node\x1b[2J\x9b\u202e" + "\nend\n"
    assert shown in finished.stdout and shown in log
    assert r"ValueError: a\rb" in finished.stderr
    for text in (finished.stdout, finished.stderr, log):
        assert text.replace("\n", "").isprintable()


def test_library_remarks_go_only_to_the_log_and_library_errors_to_the_terminal_too(tmp_path: Path) -> None:
    finished, log = run(tmp_path, LIBRARIES)
    assert finished.stdout == "of the run\n"
    heard = [line.partition("] [")[2] for line in finished.stderr.splitlines()]
    assert heard == ["ERROR] [DeepSpeed] mistake 1", "ERROR] [both] mistake 2"]
    for said in (*(f"remark {number}" for number in range(1, 6)), "of the run", "mistake 1", "mistake 2"):
        assert len(re.findall(rf"{said}$", log, re.MULTILINE)) == 1, said
    assert "[WARNING] [DeepSpeed] remark 2" in log


@pytest.mark.parametrize(
    ("end", "logged"),
    [
        ("os._exit(1)", "its end\nan error\n"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            r'Fatal Python error: Segmentation fault(.|\n)*File "<string>", line 9',
        ),
    ],
    ids=["ends without clean-up", "crashes in native code"],
)
def test_the_log_of_a_rank_that_ends_at_once_has_its_output_and_the_stack_of_a_crash(
    end: str, logged: str, tmp_path: Path
) -> None:
    _, log = run(tmp_path, PROGRAM.format(end=end))
    assert re.search(logged, log)


def test_a_log_that_cannot_be_written_ends_no_rank(small_disk: Path) -> None:
    program = PROGRAM.format(end="print('end')").replace("keep_rank_log(Path(sys.argv[1]), 3)", FULL)
    finished, _ = run(small_disk, program)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "a line, and its end\nend\n"


def test_a_rank_whose_terminal_is_gone_continues_and_logs_its_output(tmp_path: Path) -> None:
    """The terminal disappears when the supervisor that reads it is killed; the rank must still save."""
    end = "sys.stdin.read(); print('saved', flush=True); sys.stdout.flush(); os._exit(0)"
    command = [sys.executable, "-c", PROGRAM.format(end=end), str(tmp_path)]
    rank = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert rank.stdin is not None and rank.stdout is not None
    rank.stdout.close()
    rank.stdin.close()
    assert rank.wait(60) == 0
    assert "its end\nan error\nsaved\n" in (tmp_path / "logs" / "rank-0003.log").read_text()


def test_a_rank_whose_terminal_is_a_file_on_a_full_disk_continues_and_logs_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM.format(end="print('saved', flush=True); os._exit(0)"), str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, cwd=REPOSITORY, stdout=full, stderr=full, timeout=60).returncode == 0
    assert "its end\nan error\nsaved\n" in (tmp_path / "logs" / "rank-0003.log").read_text()


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


def test_a_record_is_read_as_it_was_written_and_without_a_reason_its_rank_was_probably_killed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    start = EndRecord.of(3)
    assert (start.name, start.process) == (f"rank 3 on {socket.gethostname()}", os.getpid())
    assert start.sentence == "exited without a message (probably killed)"
    end = start._replace(reason="error", exit_code=1, step=7, sentence="failed: no\x1b\nroom")
    for record in (end, start):
        write_record(tmp_path, record)
        assert read_ends(tmp_path) == [record]


def test_a_rank_whose_folder_cannot_be_written_still_ends(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    watchdog = Watchdog(World(0, 1, torch.device("cpu")), 600, tmp_path)
    watchdog.record("done", 0, "ended with exit code 0")
    assert read_ends(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"rank": 0}', '{"rank": 0, "later": 1}', "\udcff"], ids=ascii)
def test_a_damaged_record_is_ignored(text: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0000.json").write_bytes(os.fsencode(text))
    write_record(tmp_path, EndRecord.of(1))
    assert [record.rank for record in read_ends(tmp_path)] == [1]
