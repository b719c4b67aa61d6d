"""The machine's limit: how fast square matrix products go, whichever of PyTorch's libraries takes them."""

from collections.abc import Callable

import torch

from bench.timing import seconds_of
from pretrain.model.linear import linear

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {"cpu": (2048, 4096), "cuda": (4096, 8192, 16384)}
REPEATS = 3
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PRODUCTS: dict[str, Product] = {"torch.mm": torch.mm, "linear": linear}
"""In fp32 on a CPU the second is oneDNN's; else they are the same."""


def matrix_rates(precision: str) -> dict[str, float]:
    """Operations a second of the fastest product of several sizes: PyTorch's, and the model's own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    squares = [torch.rand(size, size, device=device).to(DTYPES[precision]) for size in SIZES[device]]
    return {name: max(_rate(product, left) for left in squares) for name, product in PRODUCTS.items()}


def _rate(product: Product, left: torch.Tensor) -> float:
    return 2 * left.shape[0] ** 3 / min(seconds_of(lambda: product(left, left)) for _ in range(REPEATS))
