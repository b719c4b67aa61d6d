"""Dropout by 16 random bits a value on a CPU, where PyTorch draws seven times as long for as many values.

An export carries this file.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BITS = 16
"""Of the probability too: 0.1 becomes 6554 / 65536."""
LANES = 64 // BITS


class Dropout(nn.Module):
    """Zeroes values with probability `p` while training and scales the others by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        if values.device.type != "cpu":
            return F.dropout(values, self.p, self.training)
        return values * kept(values.shape, self.p, values.dtype) if self.training and self.p else values


def kept(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """Random factors on a CPU: 0 with probability `p`, else 1 / (1 - p); from PyTorch's default generator."""
    count = math.prod(shape)
    words = torch.empty(-(-count // LANES), dtype=torch.int64).random_(-(2**63), None)
    dropped = round(p * 2**BITS)
    factors = torch.empty(count, dtype=dtype)
    torch.ge(words.view(torch.int16)[:count], dropped - 2 ** (BITS - 1), out=factors)
    return factors.mul_(2**BITS / (2**BITS - dropped)).view(shape)
