"""Joining and leaving a job. Several ranks are tried in test_engine.py, through the launcher."""

import os
import platform
import subprocess
import sys

import pytest

from pretrain.processes import start_processes

PROGRAM = """
import torch
from pretrain.processes import leave, start_processes
world = start_processes()
assert (world.rank, world.world_size, world.is_first) == (0, 1, True)
assert world.share({"step": 3}) == {"step": 3}
print("threads", torch.get_num_threads())
leave(75)
"""


def run_alone(**environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=kept | environment, capture_output=True, text=True, timeout=120
    )


def test_plain_python_is_a_job_of_one_with_every_core_and_leaves_with_the_code_given() -> None:
    finished = run_alone()
    assert (finished.returncode, finished.stderr) == (75, "")
    assert finished.stdout == f"threads {len(os.sched_getaffinity(0))}\n"


@pytest.mark.parametrize("environment", [{"OMP_NUM_THREADS": "1"}, {"LOCAL_SIZE": "1000"}], ids=str)
def test_ranks_share_the_cores_unless_told_otherwise(environment: dict[str, str]) -> None:
    assert run_alone(**environment).stdout == "threads 1\n"


def test_joining_twice_is_joining_once() -> None:
    assert start_processes() == start_processes()


FAULTS = """
import resource, torch
from pretrain.processes import start_processes
if {kept}: start_processes()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step = [torch.ones(40 * 2**20 // 4) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(sum([faults() for _ in range(20)][-5:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other settings")
def test_memory_that_a_step_leaves_serves_the_next_one_without_page_faults() -> None:
    def faults(kept: bool) -> int:
        program = FAULTS.format(kept=kept)
        return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)

    assert faults(kept=True) < 30_000 < 150_000 < faults(kept=False)  # five times 120 MB are 153,600 pages of 4 kB
