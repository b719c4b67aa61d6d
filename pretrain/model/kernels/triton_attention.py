"""Self-attention with a learned relative bias or a window in Triton, with the same bits in every run.

- The bias of a head is a table by distance (key position minus query position). A tile of scores wholly beyond
  `max_distance` has one bias, read once; for the others, tiles of biases, one per distance between tiles, are made once
  for all layers and sequences. No tensor has the size [B, N, L, L].
- Without a learned bias, attention may be to a window: tiles wholly outside of it are skipped.
- Padding is at the end and given by lengths: tiles of padding are skipped, and its outputs and gradients are zero.
- Dropout draws 8 bits per probability from Philox, keyed by seed, sequence, head, query and key; the backward draws
  them again. So a probability is dropped in 26 of 256 cases for .1, as in FlashAttention; the factor of those kept is
  exact. The seed comes from PyTorch's generator of the device.
- The backward has one pass for the query's gradient and one for key and value. The first also sums the scores' gradient
  along the diagonals of each tile, and a last kernel adds up these sums in a fixed order: no atomic addition. The
  gradients of a head's biases sum to zero, because a constant added to all scores changes nothing.
- Sums are in fp32. In fp32 itself, and for heads wider than `WIDEST_HEAD`, PyTorch's operations run: tiles would not
  fit a GPU.

The kernels: `attention_kernels`. Shape letters: B batch, N heads, L length, D head size, R distances, T tiles of
biases, M queries and K keys of a tile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton import cdiv, next_power_of_2

from pretrain.model import ops
from pretrain.model.config import WIDEST_HEAD
from pretrain.model.kernels import attention_kernels as kernels

PLAIN_BIAS = ops.attention_bias
BITS = 8
"""Random bits per probability for dropout: with 16, drawing them takes 7 to 9 of 18 to 22 instructions per score."""
DTYPES = (torch.float16, torch.bfloat16)
HIDDEN = -(2.0**15)
"""Bias outside of a window: below any score, and finite, because all tokens of a tile may be hidden from a row."""


class TableBias(NamedTuple):
    """The relative bias and the padding mask without a tensor [B, N, L, L]."""

    lengths_B: Tensor
    table_NR: Tensor | None
    """Biases by distance from -R/2 to R/2 - 1, in fp32, so that gradients of layers and sequences add up in fp32;
    None if no bias is learned."""
    tiles_NTMK: Tensor | None
    """The biases that the kernels read, in the model's precision: one tile for each distance between tiles, from -T//2
    to T//2; None if all are 0. Of a window, tiles farther away are not read."""

    def attend(self, query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, dropout: float) -> Tensor:
        """Computes `ops.Bias.attend`; rows of padding are zero."""
        (lengths_B, table_NR, tiles_NTMK), side = self, side_of(query_BNLD.shape[-1])
        local = table_NR is None and tiles_NTMK is not None
        tiles_NTMK = query_BNLD.new_zeros(1, 3, side, side) if tiles_NTMK is None else tiles_NTMK
        tiles_NTMK = tiles_NTMK.expand(query_BNLD.shape[1], -1, -1, -1).contiguous()
        return _Attend.apply(query_BNLD, key_BNLD, value_BNLD, table_NR, tiles_NTMK, lengths_B, dropout, local)


def attention_bias(
    visible_BL: Tensor,
    relative: Callable[[Tensor], Tensor] | None,
    max_distance: int,
    head_size: int,
    dtype: torch.dtype,
) -> ops.Bias | TableBias:
    """Computes `ops.attention_bias`, as tables instead of a tensor with the size L x L."""
    if dtype not in DTYPES or head_size > WIDEST_HEAD:
        return PLAIN_BIAS(visible_BL, relative, max_distance, head_size, dtype)
    lengths_B, device, side = visible_BL.sum(1, dtype=torch.int32), visible_BL.device, side_of(head_size)
    within, tiles = max_distance - (relative is not None), cdiv(visible_BL.shape[1], side)
    if relative is None and within >= visible_BL.shape[1] - 1:
        return TableBias(lengths_B, None, None)
    span = min(cdiv(within, side), tiles - 1)  # tiles beyond have one bias, or are outside of the window
    half = (span + 1) * side
    offset_R = torch.arange(-half, half, device=device)
    table_NR = HIDDEN * (offset_R.abs() > within).float()[None] if relative is None else relative(offset_R).T.float()
    place_M = torch.arange(side, device=device)
    index_TMK = torch.arange(0, 2 * half + 1, side, device=device)[:, None, None] + place_M - place_M[:, None]
    tiles_NTMK = table_NR.detach().to(dtype)[:, index_TMK.clamp_(0, 2 * half - 1)]
    return TableBias(lengths_B, table_NR.contiguous() if relative else None, tiles_NTMK)


def dropout_of(p: float, device: torch.device, bits: int) -> tuple[Tensor | None, int, float]:
    """Returns a dropout's seed, the smallest random number (of `bits`) that keeps a value, and the scale of kept ones.

    A seed drawn for each dropout is 4% of a step's calls (bench/gpu/host_calls.py), and with CUDA graphs none. One draw
    for all would have to reach every layer, and come back when a layer is recomputed.
    """
    dropped = min(max(round(p * 2**bits), int(p > 0)), 2**bits - 1)
    seed = torch.randint(2**63 - 1, (1,), device=device) if dropped else None
    return seed, dropped, 2**bits / (2**bits - dropped)


def side_of(head_size: int) -> int:
    """Returns the side of a tile: its number of queries, and of keys."""
    return 64 if head_size <= 64 else 32


def settings(head_size: int, dropped: int, local: bool) -> dict[str, Any]:
    """Returns the kernels' compile-time parameters; with more warps, a tile of 64 rows would be computed twice."""
    sizes = {"D": head_size, "WIDTH": max(16, next_power_of_2(head_size)), "SIDE": side_of(head_size)}
    return sizes | {"DROPOUT": dropped > 0, "LOCAL": local, "num_warps": 4}


class _Attend(torch.autograd.Function):
    """Attention that saves the output, each row's log-sum-exp, and the seed of its dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        query_BNLD: Tensor,
        key_BNLD: Tensor,
        value_BNLD: Tensor,
        table_NR: Tensor | None,
        tiles_NTMK: Tensor,
        lengths_B: Tensor,
        dropout: float,
        local: bool,
    ) -> Tensor:
        parts_BLND = [part.transpose(1, 2) for part in (query_BNLD, key_BNLD, value_BNLD)]
        B, L, N, D = parts_BLND[0].shape
        stride = 3 * N * D
        if any(part.stride() != (L * stride, stride, D, 1) for part in parts_BLND):
            parts_BLND, stride = [part.contiguous() for part in parts_BLND], N * D
        seed, dropped, factor = dropout_of(dropout, parts_BLND[0].device, BITS)
        ctx.settings = settings(D, dropped, local)
        ctx.grid = (cdiv(L, ctx.settings["SIDE"]) * B * N,)  # on one axis: another would end at 65,535
        ctx.sizes = (L, N, stride, tiles_NTMK.shape[1] // 2 - 1, dropped, factor)
        inputs = (*parts_BLND, tiles_NTMK, lengths_B, seed)
        output_BLND = tiles_NTMK.new_empty(B, L, N, D)
        log_sum_BNL = tiles_NTMK.new_empty(B, N, L, dtype=torch.float32)
        kernels.forward[ctx.grid](*inputs, output_BLND, log_sum_BNL, *ctx.sizes, **ctx.settings)
        ctx.save_for_backward(*inputs, output_BLND, log_sum_BNL)
        return output_BLND.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BNLD: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, output_BLND, log_sum_BNL = ctx.saved_tensors
        (B, L, N, D), learns_bias = output_BLND.shape, ctx.needs_input_grad[3]
        tiles, side, (stride, span) = ctx.grid[0] // (B * N), ctx.settings["SIDE"], ctx.sizes[2:4]
        gradient_BLND = gradient_BNLD.transpose(1, 2).contiguous()
        shape, axis = ((B, L, 3, N, D), 2) if stride > N * D else ((3, B, L, N, D), 0)  # as query, key and value lie
        query_gradient, key_gradient, value_gradient = output_BLND.new_empty(shape).unbind(axis)
        mean_BNL = torch.empty_like(log_sum_BNL)
        partial = log_sum_BNL.new_empty(B, N, tiles, (2 * span + 1) * 2 * side + 2) if learns_bias else None
        kernels.query_backward[ctx.grid](
            *(*inputs, output_BLND, log_sum_BNL, gradient_BLND, mean_BNL, query_gradient, partial),
            *ctx.sizes,
            **ctx.settings,
            LEARNS_BIAS=learns_bias,
        )
        kernels.key_backward[ctx.grid](
            *(*inputs, log_sum_BNL, gradient_BLND, mean_BNL, key_gradient, value_gradient),
            *ctx.sizes,
            **ctx.settings,
        )
        table_gradient_NR = log_sum_BNL.new_empty(N, 2 * (span + 1) * side) if learns_bias else None
        if learns_bias:
            kernels.table_backward[2 * (span + 1), N](
                partial, inputs[4], table_gradient_NR, B, N, tiles, span, S=128, SIDE=side, num_warps=8
            )
        gradients = (part.transpose(1, 2) for part in (query_gradient, key_gradient, value_gradient))
        return *gradients, table_gradient_NR, None, None, None, None
