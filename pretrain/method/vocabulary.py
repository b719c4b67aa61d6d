"""Rows as long as the vocabulary, searched for little more than reading them once: first their blocks, then one block.

Shape letters: X any leading dimensions, V vocabulary, N blocks of a row, S tokens of a block.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128  # near the root of 30,522 tokens; from 64 to 512 the time is the same


@torch.no_grad()
def largest(values_XV: Tensor) -> Tensor:
    """The id of each row's largest value, the first of several [X]; on a CPU in a third of `argmax`'s time."""
    block_X1 = _by_block(torch.amax, values_XV).argmax(-1, keepdim=True)
    place_X1 = _block(values_XV, block_X1, fill=-torch.inf).argmax(-1, keepdim=True)
    return (block_X1 * BLOCK + place_X1).squeeze(-1)


@torch.no_grad()
def inverse_cdf(weights_XV: Tensor, uniform_X: Tensor) -> tuple[Tensor, Tensor]:
    """The token at which a row's running sum first exceeds the share `uniform` of its total; and the totals. Both [X].

    `uniform` lies in [0, 1) with at most 24 bits, so that what is sought stays below the total and a token of weight
    zero, at which the sum does not grow, is never found. Of weights that are not finite it is some token.
    """
    cdf_XN = _by_block(torch.sum, weights_XV).cumsum(-1)
    total_X1 = cdf_XN[..., -1:]
    sought_X1 = uniform_X[..., None] * total_X1
    block_X1 = torch.searchsorted(cdf_XN, sought_X1, right=True).clamp_(max=cdf_XN.shape[-1] - 1)
    sought_X1 = sought_X1 - F.pad(cdf_XN, (1, 0)).gather(-1, block_X1)
    cdf_XS = _block(weights_XV, block_X1, fill=0.0).cumsum_(-1)
    end_X1 = cdf_XS[..., -1:]  # the block's sum but for rounding: nothing at or beyond it may be sought
    sought_X1 = sought_X1.minimum(end_X1.nextafter(torch.zeros_like(end_X1)))
    place_X1 = torch.searchsorted(cdf_XS, sought_X1, right=True)
    token_X1 = (block_X1 * BLOCK + place_X1).clamp_(max=weights_XV.shape[-1] - 1)
    return token_X1.squeeze(-1), total_X1.squeeze(-1)


def _by_block(reduce: Callable[..., Tensor], values_XV: Tensor) -> Tensor:
    """`reduce` of each block [X, N]; the last may be a short one."""
    whole = values_XV.shape[-1] // BLOCK
    reduced_XN = reduce(values_XV[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK)), -1)
    rest_XS = values_XV[..., whole * BLOCK :]
    return torch.cat((reduced_XN, reduce(rest_XS, -1, keepdim=True)), -1) if rest_XS.shape[-1] else reduced_XN


def _block(values_XV: Tensor, block_X1: Tensor, fill: float) -> Tensor:
    """One block of each row [X, S], filled up where the row ends first."""
    ids_XS = block_X1 * BLOCK + torch.arange(BLOCK, device=block_X1.device)
    vocabulary = values_XV.shape[-1]
    return values_XV.gather(-1, ids_XS.clamp(max=vocabulary - 1)).masked_fill_(ids_XS >= vocabulary, fill)
