"""Self-attention with a learned relative bias in Triton, forward and backward, with the same bits in every run.

- The bias of a head is a table by distance (key position minus query position). A tile of scores wholly beyond
  `max_distance` has one bias, read once; no tensor has the size [B, N, L, L].
- Padding is at the end and given by lengths: tiles of padding are skipped, and its outputs and gradients are zero.
- Dropout draws 16 bits per probability from Philox, keyed by seed, sequence, head, query and key; the backward draws
  them again. The seed comes from PyTorch's generator of the device.
- The backward has one pass for the query's gradient and one for those of key and value. The first also sums the
  scores' gradient along the diagonals of each tile, and a last kernel adds up these sums in a fixed order: no atomic
  addition. The gradients of a head's biases sum to zero, because a constant added to all scores changes nothing.
- Sums are in fp32, also those of fp64 values.

The kernels: `attention_kernels`. Shape letters: B batch, N heads, L length, D head size, R distances.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton import cdiv, next_power_of_2

from pretrain.model import attention_kernels as kernels

BITS = 16
"""Random bits per probability for dropout, as in `cpu_ops`."""
MARGIN = 256
"""Distances in the table beyond the last of a different bias, on each side: no tile within reach spans more."""


class RelativeBias(NamedTuple):
    """The `bias` of `attend`."""

    lengths_B: Tensor
    table_NR: Tensor | None
    """Biases by distance from -R/2 to R/2 - 1, in fp32, in which gradients of layers and sequences are added."""
    rounded_NR: Tensor | None
    """The table in the precision of the model, which kernels read: Triton would copy fp32 to shared memory first."""


def attention_bias(
    visible_BL: Tensor, relative: Callable[[Tensor], Tensor] | None, max_distance: int, dtype: torch.dtype
) -> RelativeBias:
    """Computes `ops.attention_bias`, as a table instead of a tensor with the size L x L."""
    lengths_B = visible_BL.sum(1, dtype=torch.int32)
    if relative is None:
        return RelativeBias(lengths_B, None, None)
    half = min(max_distance, visible_BL.shape[1]) + MARGIN
    distance_R = torch.arange(-half, half, device=visible_BL.device)
    table_NR = relative(distance_R).T.float().contiguous()
    return RelativeBias(lengths_B, table_NR, table_NR.detach().to(dtype))


def attend(query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, bias: RelativeBias, dropout: float) -> Tensor:
    """Computes `ops.attend`; rows of padding are zero."""
    lengths_B, table_NR, rounded_NR = bias
    if rounded_NR is None:
        rounded_NR = query_BNLD.new_zeros(query_BNLD.shape[1], 2 * MARGIN)
    context_BNLD: Tensor = _Attend.apply(query_BNLD, key_BNLD, value_BNLD, table_NR, rounded_NR, lengths_B, dropout)
    return context_BNLD


def dropout_of(p: float, device: torch.device) -> tuple[Tensor | None, int, float]:
    """Returns a dropout's seed, the least number of `BITS` bits that keeps a value, and the factor of values kept."""
    dropped = min(round(p * 2**BITS), 2**BITS - 1)
    seed = torch.randint(2**63 - 1, (1,), device=device) if dropped else None
    return seed, dropped, 2**BITS / (2**BITS - dropped)


def settings(dtype: torch.dtype, head_size: int, dropped: int) -> dict[str, dict[str, Any]]:
    """Returns each kernel's compile-time parameters: M queries and K keys per tile, warps, precision."""
    precise = dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    width = max(16, next_power_of_2(head_size))
    common = {"D": head_size, "WIDTH": width, "DROPOUT": dropped > 0, "PRECISION": "ieee" if precise else "tf32"}
    side = 64 if dtype.itemsize * width <= 256 else 32
    return {
        "forward": common | {"M": 2 * side if width <= 64 else side, "K": side, "num_warps": 8},
        "query_backward": common | {"M": side, "num_warps": 8},
        "key_backward": common | {"M": side // 2, "K": side, "num_warps": 8},
    }


class _Attend(torch.autograd.Function):
    """Attention that saves the output, each row's log-sum-exp, and the seed of its dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        query_BNLD: Tensor,
        key_BNLD: Tensor,
        value_BNLD: Tensor,
        table_NR: Tensor | None,
        rounded_NR: Tensor,
        lengths_B: Tensor,
        dropout: float,
    ) -> Tensor:
        query_BLND, key_BLND, value_BLND = (
            part.transpose(1, 2).contiguous() for part in (query_BNLD, key_BNLD, value_BNLD)
        )
        B, L, N, D = query_BLND.shape
        seed, dropped, factor = dropout_of(dropout, query_BLND.device)
        half = rounded_NR.shape[1] // 2
        ctx.settings = settings(query_BLND.dtype, D, dropped)
        ctx.sizes = (L, N, half - MARGIN, half, dropped, factor)
        inputs = (query_BLND, key_BLND, value_BLND, rounded_NR, lengths_B, seed)
        output_BLND = torch.empty_like(query_BLND)
        log_sum_BNL = query_BLND.new_empty(B, N, L, dtype=torch.float32)
        tiles = cdiv(L, ctx.settings["forward"]["M"])
        kernels.forward[tiles, B * N](*inputs, output_BLND, log_sum_BNL, *ctx.sizes, **ctx.settings["forward"])
        ctx.save_for_backward(*inputs, output_BLND, log_sum_BNL)
        return output_BLND.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BNLD: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, output_BLND, log_sum_BNL = ctx.saved_tensors
        lengths_B, (B, L, N, _) = inputs[4], output_BLND.shape
        gradient_BLND = gradient_BNLD.transpose(1, 2).contiguous()
        query_gradient, key_gradient, value_gradient = output_BLND.new_empty(3, *output_BLND.shape)  # for `linears`
        mean_BNL, learns_bias = torch.empty_like(log_sum_BNL), ctx.needs_input_grad[3]
        side, (reach, half) = ctx.settings["query_backward"]["M"], ctx.sizes[2:4]
        tiles = cdiv(L, side)
        width = (2 * ((reach + side - 2) // side) + 1) * 2 * side + 2
        partial = log_sum_BNL.new_empty(B, N, tiles, width) if learns_bias else None
        kernels.query_backward[tiles, B * N](
            *(*inputs, output_BLND, log_sum_BNL, gradient_BLND, mean_BNL, query_gradient, partial),
            *ctx.sizes,
            **ctx.settings["query_backward"],
            LEARNS_BIAS=learns_bias,
        )
        kernels.key_backward[cdiv(L, ctx.settings["key_backward"]["K"]), B * N](
            *(*inputs, log_sum_BNL, gradient_BLND, mean_BNL, key_gradient, value_gradient),
            *ctx.sizes,
            **ctx.settings["key_backward"],
        )
        table_gradient_NR = torch.empty_like(inputs[3], dtype=torch.float32) if learns_bias else None
        if learns_bias:
            kernels.table_backward[2 * cdiv(half, side), N](
                partial, lengths_B, table_gradient_NR, B, N, tiles, reach, half, S=128, M=side, num_warps=8
            )
        gradients = (part.transpose(1, 2) for part in (query_gradient, key_gradient, value_gradient))
        return *gradients, table_gradient_NR, None, None, None
