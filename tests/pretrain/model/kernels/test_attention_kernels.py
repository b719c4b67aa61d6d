"""Claims about the kernels of attention as compiled code; test_triton_attention.py has those about their results."""

import pytest

from tests.pretrain.model.kernels.conftest import compiled

pytest.importorskip("triton")
from pretrain.model.config import WIDEST_HEAD

MOST_SPILLED = {80: 512, 90: 64}
"""Bytes per thread at head size 64, by compute capability."""
MOST_SHARED = {86: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory that a block may have. Compute capability 8.0 has 163, and 8.9 as many as 8.6."""


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("architecture", [80, 90])
def test_for_a100_and_h100_each_score_is_computed_once_and_few_registers_are_spilled(
    architecture: int, dtype: str
) -> None:
    rows = compiled("--head_sizes", 64, "--dtypes", dtype, "--architectures", architecture)
    with_bias, in_window, (table,) = rows[:3], rows[3:6], rows[6:]
    names = ["forward", "query_backward", "key_backward"]
    assert [row[0] for row in with_bias] == names == [row[0] for row in in_window] and table[0] == "table_backward"
    exponentials = [row[10].split("/") for row in rows[:6]]  # of each loop
    assert all(1 <= float(of_first_loop) < 1.5 for of_first_loop, *_ in exponentials)
    assert all(int(row[7]) <= MOST_SPILLED[architecture] for row in rows)


@pytest.mark.long
@pytest.mark.parametrize("architecture", MOST_SHARED)
def test_at_every_head_size_shared_memory_suffices_on_every_gpu(architecture: int) -> None:
    """Smaller heads have the tiles of these, with fewer columns."""
    rows = compiled("--head_sizes", 64, WIDEST_HEAD, "--architectures", architecture)
    assert len(rows) == 14 and all(float(row[8]) <= MOST_SHARED[architecture] for row in rows)
