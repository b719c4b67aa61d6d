"""Dropout by 16 random bits a value on a CPU, where PyTorch draws many times as long for as many values.

An export carries this file.
"""

import math

import numpy as np
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
        if values.device.type != "cpu" or torch.compiler.is_compiling():  # the compiler fuses PyTorch's
            return F.dropout(values, self.p, self.training)
        return values * kept(values.shape, self.p, values.dtype) if self.training and self.p else values


def kept(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """Random factors on a CPU: 0 with probability `p`, else 1 / (1 - p); keyed by PyTorch's default generator."""
    count = math.prod(shape)
    bits = _random_words(-(-count // LANES)).view(torch.int16)[:count]
    dropped = min(round(p * 2**BITS), 2**BITS - 1)
    first_kept, factor = dropped - 2 ** (BITS - 1), 2**BITS / (2**BITS - dropped)
    if dtype.itemsize == 2 and dropped:  # in place: 0 or 1, times the bits of the factor
        pattern = int(torch.tensor(factor, dtype=dtype).view(torch.int16))
        return bits.clamp_(first_kept - 1, first_kept).sub_(first_kept - 1).mul_(pattern).view(dtype).view(shape)
    return torch.ge(bits, first_kept, out=torch.empty(count, dtype=dtype)).mul_(factor).view(shape)


def _random_words(count: int) -> Tensor:
    """So many int64; NumPy's SFC64 fills them twice as fast as PyTorch's Mersenne Twister, which draws its seed."""
    seed = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))
    random = np.random.Generator(np.random.SFC64(seed % 2**64))
    return torch.from_numpy(random.integers(-(2**63), 2**63, count))
