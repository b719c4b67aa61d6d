"""The machine's limit: how fast square matrix products go, whichever of PyTorch's libraries takes them."""

import time
from collections.abc import Callable

import torch

from pretrain.linear import linear

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {"cpu": (2048, 4096), "cuda": (4096, 8192, 16384)}
REPEATS = 3


def matrix_rate(precision: str) -> float:
    """Operations a second of the fastest product of several sizes: `torch.mm` and, in fp32 on a CPU, oneDNN's."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rate = 0.0
    for size in SIZES[device]:
        left = torch.rand(size, size, device=device).to(DTYPES[precision])
        for product in (torch.mm, linear):
            fastest = min(_seconds(product, left) for _ in range(REPEATS))
            rate = max(rate, 2 * size**3 / fastest)
    return rate


def _seconds(product: Callable[..., torch.Tensor], left: torch.Tensor) -> float:
    _wait(left)
    started = time.perf_counter()
    _wait(product(left, left))
    return time.perf_counter() - started


def _wait(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()
