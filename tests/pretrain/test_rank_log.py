"""Claims about each rank's log."""

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

PROGRAM = """
import os, signal, sys
from pathlib import Path
from pretrain.rank_log import keep_rank_log
keep_rank_log(Path(sys.argv[1]), 3)
print("a line, and", end=" ")
print("its end")
print("an error", file=sys.stderr)
{end}
"""
FULL = """
from tests.pretrain.conftest import fill
keep_rank_log(Path(sys.argv[1]), 3)
fill(Path(sys.argv[1]))
print("x" * 5000, file=sys.stderr)  # more than is left of the log's last block
"""


def run(folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(end=end), str(folder)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def test_what_a_rank_prints_is_on_its_terminal_and_in_its_log_with_every_start_told_apart(tmp_path: Path) -> None:
    for _ in range(2):
        finished = run(tmp_path, "raise ValueError('nothing moved')")
        assert finished.stdout == "a line, and its end\n"
        assert finished.stderr.startswith("an error\nTraceback") and "nothing moved" in finished.stderr
    log = (tmp_path / "logs" / "rank-0003.log").read_text()
    assert len(re.findall(r"^--- \S+ rank 3 on \S+, process \d+$", log, re.MULTILINE)) == 2
    assert log.count("a line, and its end\nan error\nTraceback") == 2
    assert log.count("ValueError: nothing moved") == 2


def test_a_crash_below_python_leaves_its_stack(tmp_path: Path) -> None:
    run(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    log = (tmp_path / "logs" / "rank-0003.log").read_text()
    assert "Fatal Python error: Segmentation fault" in log and 'File "<string>", line 9' in log


def test_a_rank_that_ends_without_cleaning_up_has_said_everything(tmp_path: Path) -> None:
    run(tmp_path, "os._exit(1)")
    assert "its end\nan error\n" in (tmp_path / "logs" / "rank-0003.log").read_text()


def test_a_log_that_the_disk_does_not_take_ends_no_rank(small_disk: Path) -> None:
    program = PROGRAM.format(end="print('end')").replace("keep_rank_log(Path(sys.argv[1]), 3)", FULL)
    command = [sys.executable, "-c", program, str(small_disk)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "a line, and its end\nend\n"
