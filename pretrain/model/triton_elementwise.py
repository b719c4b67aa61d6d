"""GELU, and LayerNorm after dropout and residual, in Triton: fewer passes over memory, with the same bits in every run.

- GELU's backward also sums the gradient of the bias that was added before it.
- Dropout, residual and LayerNorm are one pass forward and one backward. For the backward they keep the sum, and each
  row's mean and inverse standard deviation; it draws dropout again, as in `triton_attention`.
- The gradients of weights and biases are added in fp32: first by a fixed number of programs, then their sums. There is
  no atomic addition.

The kernels: `elementwise_kernels`. Shape letters: X any leading dimensions, R rows (their product), I inputs, O
outputs, H hidden size, P programs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton import cdiv, next_power_of_2

from pretrain.model import elementwise_kernels as kernels
from pretrain.model.triton_attention import dropout_of

PROGRAMS = 256
"""Programs that sum gradients of weights and biases: a fixed number, so that the order of the sums is fixed too."""
TILE = 2048
"""Minimum values per tile; a row of LayerNorm is never split."""
COLUMNS = 128
"""Columns per tile of GELU."""


def gelu_linear(input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """Computes `ops.gelu_linear`."""
    if input_XI.dtype == torch.float64:
        return F.gelu(F.linear(input_XI, weight_OI, bias_O))
    output_XO: Tensor = _GeluLinear.apply(input_XI, weight_OI, bias_O)
    return output_XO


def norm_residual(
    values_XH: Tensor, residual_XH: Tensor, p: float, weight_H: Tensor, bias_H: Tensor, eps: float
) -> Tensor:
    """Computes `ops.norm_residual`."""
    if values_XH.dtype == torch.float64:
        return F.layer_norm(residual_XH + F.dropout(values_XH, p), weight_H.shape, weight_H, bias_H, eps)
    output_XH: Tensor = _NormResidual.apply(values_XH, residual_XH, p, weight_H, bias_H, eps)
    return output_XH


def tile_of(columns: int, most: int | None = None) -> dict[str, int]:
    """Returns a kernel's tile size, rows and columns (at most `most`), and its number of warps."""
    width = max(16, next_power_of_2(columns))
    width = min(width, most or width)
    return {"R": max(1, TILE // width), "C": width, "num_warps": 4}


class _GeluLinear(torch.autograd.Function):
    """GELU(x W^T + b), which saves x and the argument of GELU."""

    @staticmethod
    def forward(ctx: Any, input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
        before_XO = F.linear(input_XI, weight_OI, bias_O)
        ctx.save_for_backward(input_XI, weight_OI, before_XO)
        return F.gelu(before_XO)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_XO: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        input_XI, weight_OI, before_XO = ctx.saved_tensors
        before_RO, gradient_RO = before_XO.flatten(0, -2), gradient_XO.flatten(0, -2).contiguous()
        rows, columns = before_RO.shape
        tile = tile_of(columns, COLUMNS)
        tiles = cdiv(rows, tile["R"])
        programs = min(PROGRAMS, tiles)
        slope_RO = torch.empty_like(before_RO)
        partial_PO = before_RO.new_empty(programs, columns, dtype=torch.float32)
        kernels.gelu_backward[programs, cdiv(columns, tile["C"])](
            before_RO, gradient_RO, slope_RO, partial_PO, rows, columns, tiles, **tile
        )
        input_gradient_XI = (slope_RO @ weight_OI).view_as(input_XI)
        weight_gradient_OI = slope_RO.T @ input_XI.flatten(0, -2)
        return input_gradient_XI, weight_gradient_OI, partial_PO.sum(0).to(weight_OI.dtype)


class _NormResidual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values_XH: Tensor, residual_XH: Tensor, p: float, weight_H: Tensor, bias_H: Tensor, eps: float
    ) -> Tensor:
        values_RH, residual_RH = (part.flatten(0, -2).contiguous() for part in (values_XH, residual_XH))
        (R, H), tile = values_RH.shape, tile_of(values_RH.shape[1])
        seed, *ctx.dropout = dropout_of(p, values_RH.device)
        ctx.tile = tile | {"DROPOUT": seed is not None}
        total_RH, output_RH = torch.empty_like(values_RH), torch.empty_like(values_RH)
        mean_R, inverse_R = values_RH.new_empty(2, R, dtype=torch.float32)
        kernels.norm_forward[(cdiv(R, tile["R"]),)](
            *(values_RH, residual_RH, weight_H, bias_H, seed, total_RH, output_RH, mean_R, inverse_R),
            *(R, H, *ctx.dropout, eps),
            **ctx.tile,
        )
        ctx.save_for_backward(total_RH, weight_H, seed, mean_R, inverse_R)
        return output_RH.view_as(values_XH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_XH: Tensor) -> tuple[Tensor | None, ...]:
        total_RH, weight_H, seed, mean_R, inverse_R = ctx.saved_tensors
        (R, H), tiles = total_RH.shape, cdiv(len(total_RH), ctx.tile["R"])
        gradient_RH = gradient_XH.flatten(0, -2).contiguous()
        residual_gradient_RH = torch.empty_like(total_RH)
        values_gradient_RH = torch.empty_like(total_RH) if ctx.tile["DROPOUT"] else residual_gradient_RH
        partial_P2H = mean_R.new_empty(min(PROGRAMS, tiles), 2, H)
        kernels.norm_backward[(len(partial_P2H),)](
            *(gradient_RH, total_RH, weight_H, seed, mean_R, inverse_R),
            *(values_gradient_RH, residual_gradient_RH, partial_P2H, R, H, tiles, *ctx.dropout),
            **ctx.tile,
        )
        weight_gradient_H, bias_gradient_H = partial_P2H.sum(0).to(weight_H.dtype)
        values_gradient_XH, residual_gradient_XH = (
            part.view_as(gradient_XH) for part in (values_gradient_RH, residual_gradient_RH)
        )
        return values_gradient_XH, residual_gradient_XH, None, weight_gradient_H, bias_gradient_H, None
