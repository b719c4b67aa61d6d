"""Claims about peak memory: it is given in millions of bytes."""

import re
from pathlib import Path

import pytest
import torch

from bench.memory import peak_mb


def test_the_peak_is_the_systems_figure_in_millions_of_bytes() -> None:
    if torch.cuda.is_available():
        pytest.skip("on this machine the GPU's memory is measured")
    kib = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert kib and peak_mb() == pytest.approx(int(kib[1]) * 1024 / 1e6, rel=0.01)
