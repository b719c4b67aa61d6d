"""The machine's practical limit: FLOP/s of large square matrix products in PyTorch."""

from collections.abc import Callable

import torch

from bench.timing import seconds_of
from pretrain.model import ops
from pretrain.model.kernels import cpu_ops

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {"cpu": (2048, 4096), "cuda": (4096, 8192, 16384)}
REPEATS = 3
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def matrix_rates(precision: str) -> dict[str, float]:
    """Returns the FLOP/s at the fastest size, of `torch.mm` and of the model's linear layer (oneDNN on a CPU)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    squares = [torch.randn(size, size, device=device).to(DTYPES[precision]) for size in SIZES[device]]
    products: dict[str, Product] = {"torch.mm": torch.mm, "linear": cpu_ops.linear if device == "cpu" else ops.linear}
    return {name: max(_rate(product, left) for left in squares) for name, product in products.items()}


def _rate(product: Product, left: torch.Tensor) -> float:
    return 2 * left.shape[0] ** 3 / min(seconds_of(lambda: product(left, left)) for _ in range(REPEATS))
