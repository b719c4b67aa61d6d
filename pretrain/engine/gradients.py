"""The gradient norm in float64, whatever the gradients' precision, and however ranks and ZeRO stages divide them."""

from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK = 2**20
"""Values converted to float64 at once on a CPU: 8 MB, which fit its cache."""


@torch.no_grad()
def squared_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the sum of squares of all values, a float64 scalar on their device; not finite if any value is not.

    A GPU handles hundreds of tensors with a few kernels. Squares are summed in float64: in fp32, the norm of a large
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
