"""Claims about the kernels' benchmark: every operation is timed against PyTorch's."""

import re

import pytest

from bench.kernels import KernelOptions, main


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_command_prints_a_ratio_for_every_operation(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(KernelOptions(preset="tiny", batch_size=1, seq_length=16, dtype=dtype, repeats=1))  # type: ignore[arg-type]
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 8
    assert all(re.search(r"PyTorch +\S+ ms  ours +\S+ ms +\S+x$", row) for row in rows)
