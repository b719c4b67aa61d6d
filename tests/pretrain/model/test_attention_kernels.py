"""Claims about the kernels of attention as compiled code; test_triton_attention.py has those about their results."""

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("triton")
MOST_SPILLED = 64
"""Bytes per thread."""


def compiled(*options: object) -> list[list[str]]:
    """Returns the rows that `bench/gpu_registers.py` prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "bench/gpu_registers.py", "--dtypes", "bf16", *map(str, options)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]


@pytest.mark.long
def test_kernels_compile_for_a100_and_h100_with_few_spills() -> None:
    rows = compiled("--head_sizes", 64, 128)
    assert [(row[0], row[3]) for row in rows] == [
        (kernel, architecture)
        for _ in (64, 128)
        for kernel in ("forward", "query_backward", "key_backward", "table_backward")
        for architecture in ("80", "90")
    ]
    assert not [row for row in rows if int(row[7]) > MOST_SPILLED]
