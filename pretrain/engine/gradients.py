"""The norm of gradients in float64, whatever their precision: the same however ranks and ZeRO stages share them out."""

from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK = 2**20
"""Values widened at once on a CPU: 8 MB of float64, which its cache holds."""


@torch.no_grad()
def squared_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The sum of squares of all values, a float64 scalar on their device; not finite where one of them is not.

    A GPU takes hundreds of tensors by a few kernels. Squares add up in float64: in fp32 the norm of a large fp32
    matrix is off by a thousandth on a CPU.
    """
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    if gradients[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(list(gradients), dtype=torch.float64)).square().sum()
    wide = torch.empty(CHUNK, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for gradient in gradients:
        for part in gradient.flatten().split(CHUNK):
            part = wide[: part.numel()].copy_(part)
            total += torch.dot(part, part)
    return total
