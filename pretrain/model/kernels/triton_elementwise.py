"""GELU, LayerNorm after dropout and residual, and sums of columns (a bias's gradient) in Triton: fewer passes over
memory, with the same bits in every run.

- GELU's backward also sums the gradient of the bias that was added before it.
- Dropout, residual and LayerNorm are one pass forward and one backward. For the backward they keep the sum, and each
  row's mean and inverse standard deviation; it draws dropout again, 16 bits per value. It also sums the gradient of the
  bias that the values have from their dense layer.
- The gradients of weights and biases are added in fp32: first by a fixed number of programs, then their sums. There is
  no atomic addition. PyTorch's own sum of columns takes 1.1 to 1.9 times as long (docs/evidence/gpu.md).

The kernels: `elementwise_kernels`. Shape letters: X any leading dimensions, R rows (their product), I inputs, O
outputs, H hidden size, P programs, S outputs of several layers, C columns.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton import cdiv, next_power_of_2

from pretrain.model import ops
from pretrain.model.kernels import elementwise_kernels as kernels
from pretrain.model.kernels.triton_attention import dropout_of

BITS = 16
"""Random bits per value for dropout, as in `cpu_ops`."""
PROGRAMS = 512
"""Maximum programs that sum gradients of weights and biases; fixed, so that the order of the sums is fixed."""
NORM_TILE, GELU_TILE, GELU_COLUMNS = 4096, 2048, 64
"""Values per tile, and columns of GELU's: the fastest tried on an H100. A row of LayerNorm is never split."""
BOTH_TILE = 2048
"""Values per tile of LayerNorm's backward if the sum has a gradient, too: with more, an H100 would spill registers."""
SUM_ROWS, SUM_COLUMNS, SUM_PROGRAMS = 32, 128, 128
"""Tile and programs of sums over many rows."""
LAST_ROWS, LAST_COLUMNS, FEW_ROWS = 256, 16, 1024
"""Tile of sums over few rows, such as partial sums, and how many rows are few."""


def gelu_linear(input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """Computes `ops.gelu_linear`."""
    if input_XI.dtype == torch.float64:
        return F.gelu(F.linear(input_XI, weight_OI, bias_O))
    return _GeluLinear.apply(input_XI, weight_OI, bias_O)


def layer_norm(input_XH: Tensor, weight_H: Tensor, bias_H: Tensor | None, eps: float) -> Tensor:
    """Computes `ops.layer_norm`."""
    if input_XH.dtype == torch.float64 or torch.compiler.is_compiling():
        return F.layer_norm(input_XH, weight_H.shape, weight_H, bias_H, eps)
    return _NormResidual.apply(input_XH, None, 0.0, weight_H, bias_H, eps, None)


def linear(input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Computes `ops.linear`."""
    if bias_O is None or torch.compiler.is_compiling():
        return F.linear(input_XI, weight_OI, bias_O)
    return _Linears.apply(input_XI, weight_OI, bias_O)[0]


def linears(input_XI: Tensor, layers: Sequence[ops.Linear]) -> tuple[Tensor, ...]:
    """Computes `ops.linears`: for three layers, outputs in one launch instead of 3, gradients in 4 instead of 14."""
    if torch.compiler.is_compiling():
        return tuple(F.linear(input_XI, layer.weight, layer.bias) for layer in layers)
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    return _Linears.apply(input_XI, *weights, *biases)


def norm_residual(
    values_XH: Tensor, residual_XH: Tensor, p: float, weight_H: Tensor, bias_H: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Computes `ops.norm_residual`."""
    if values_XH.dtype == torch.float64 or torch.compiler.is_compiling():
        total_XH = residual_XH + F.dropout(values_XH, p)
        return total_XH, F.layer_norm(total_XH, weight_H.shape, weight_H, bias_H, eps)
    return _NormResidual.apply(values_XH, residual_XH, p, weight_H, bias_H, eps, None)


def residual_output(
    input_XI: Tensor, dense: ops.Linear, residual_XH: Tensor, p: float, norm: ops.ResidualLayerNorm
) -> Tensor:
    """Computes `ops.residual_output`: LayerNorm's backward also sums the gradient of the dense layer's bias."""
    if input_XI.dtype == torch.float64 or torch.compiler.is_compiling():
        return norm(dense(input_XI), residual_XH, p)[1]
    values_XH = linear(input_XI, dense.weight, dense.bias.detach())
    return _NormResidual.apply(
        values_XH, residual_XH, p if norm.training else 0.0, norm.weight, norm.bias, norm.eps, dense.bias
    )[1]


def column_sums(values_RC: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the sums of columns, [C], added in fp32 and rounded once."""
    if values_RC.dtype == torch.float64:
        return values_RC.sum(0)
    if len(values_RC) > FEW_ROWS:
        values_RC = _column_sums(values_RC, torch.float32, SUM_PROGRAMS, SUM_ROWS, SUM_COLUMNS)
    return _column_sums(values_RC, dtype, 1, LAST_ROWS, LAST_COLUMNS)[0]


def _column_sums(values_RC: Tensor, dtype: torch.dtype, programs: int, tile_rows: int, tile_columns: int) -> Tensor:
    R, C = values_RC.shape
    sums_PC = values_RC.new_empty(programs, C, dtype=dtype)
    kernels.column_sums[programs, cdiv(C, tile_columns)](
        values_RC.contiguous(), sums_PC, R, C, cdiv(R, tile_rows), R=tile_rows, C=tile_columns, num_warps=4
    )
    return sums_PC


def together(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Returns the parts joined along an axis: a view if they are side by side in memory, else a copy.

    The weights of layers are under ZeRO, and attention's gradients.
    """
    first, step = parts[0], parts[0].shape[axis] * parts[0].stride(axis)
    follow = (
        part.stride() == first.stride()
        and part.untyped_storage()._cdata == first.untyped_storage()._cdata
        and part.storage_offset() == first.storage_offset() + number * step
        for number, part in enumerate(parts)
    )
    shape = [size * len(parts) if axis == number else size for number, size in enumerate(first.shape)]
    return first.as_strided(shape, first.stride()) if all(follow) else torch.cat([*parts], axis)


def tile_of(columns: int, values: int = NORM_TILE) -> dict[str, int]:
    """Returns the rows and columns of a kernel's tile of at most so many values, and its number of warps."""
    width = max(16, next_power_of_2(columns))
    return {"R": min(32, max(1, values // width)), "C": width, "num_warps": 4}


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
        tile = tile_of(min(columns, GELU_COLUMNS), GELU_TILE)
        tiles = cdiv(rows, tile["R"])
        programs = min(PROGRAMS, tiles)
        slope_RO = torch.empty_like(before_RO)
        partial_PO = before_RO.new_empty(programs, columns, dtype=torch.float32)
        kernels.gelu_backward[programs, cdiv(columns, tile["C"])](
            before_RO, gradient_RO, slope_RO, partial_PO, rows, columns, tiles, **tile
        )
        input_gradient_XI = (slope_RO @ weight_OI).view_as(input_XI)
        weight_gradient_OI = slope_RO.T @ input_XI.flatten(0, -2)
        return input_gradient_XI, weight_gradient_OI, column_sums(partial_PO, weight_OI.dtype)


class _Linears(torch.autograd.Function):
    """Dense layers that share their input, as one: S outputs, or gradients, side by side."""

    @staticmethod
    def forward(ctx: Any, input_XI: Tensor, *weights_and_biases: Tensor) -> tuple[Tensor, ...]:
        ctx.count = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[: ctx.count], weights_and_biases[ctx.count :]
        ctx.save_for_backward(input_XI, *weights)
        return F.linear(input_XI, together(weights, 0), together(biases, 0)).chunk(ctx.count, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients_XO: Tensor) -> tuple[Tensor | None, ...]:
        (input_XI, *weights), (of_input, *of_parameters) = ctx.saved_tensors, ctx.needs_input_grad
        gradient_RS = together([gradient_XO.flatten(0, -2) for gradient_XO in gradients_XO], 1)
        count, none = ctx.count, [None] * ctx.count
        return (
            (gradient_RS @ together(weights, 0)).view_as(input_XI) if of_input else None,
            *((gradient_RS.T @ input_XI.flatten(0, -2)).chunk(count) if any(of_parameters[:count]) else none),
            *(column_sums(gradient_RS, input_XI.dtype).chunk(count) if any(of_parameters[count:]) else none),
        )


class _NormResidual(torch.autograd.Function):
    """The sum residual + dropout(values), and its LayerNorm; without residual LayerNorm(values) alone. A bias that is
    already in `values` can get its gradient here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values_XH: Tensor,
        residual_XH: Tensor | None,
        p: float,
        weight_H: Tensor,
        bias_H: Tensor | None,
        eps: float,
        values_bias_H: Tensor | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        values_RH = values_XH.flatten(0, -2).contiguous()
        residual_RH = None if residual_XH is None else residual_XH.flatten(0, -2).contiguous()
        (R, H), tile = values_RH.shape, tile_of(values_RH.shape[1])
        seed, *ctx.dropout = dropout_of(p, values_RH.device, BITS)
        total_RH = values_RH if residual_RH is None else torch.empty_like(values_RH)
        output_RH, (mean_R, inverse_R) = torch.empty_like(values_RH), values_RH.new_empty(2, R, dtype=torch.float32)
        kernels.norm_forward[(cdiv(R, tile["R"]),)](
            *(values_RH, residual_RH, weight_H, bias_H, seed, total_RH, output_RH, mean_R, inverse_R),
            *(R, H, *ctx.dropout, eps),
            **tile,
            DROPOUT=seed is not None,
        )
        ctx.save_for_backward(total_RH, weight_H, seed, mean_R, inverse_R)
        ctx.set_materialize_grads(False)  # ELECTRA does not use the sum
        ctx.shape, output_XH = values_XH.shape, output_RH.view_as(values_XH)
        return output_XH if residual_RH is None else (total_RH.view_as(values_XH), output_XH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients_XH: Tensor | None) -> tuple[Tensor | None, ...]:
        total_RH, weight_H, seed, mean_R, inverse_R = ctx.saved_tensors
        of_total_RH, gradient_RH = (
            None if each is None else each.flatten(0, -2).contiguous() for each in (None, *gradients_XH)[-2:]
        )
        (R, H), drops = total_RH.shape, seed is not None
        tile = tile_of(H, NORM_TILE if of_total_RH is None else BOTH_TILE)
        tiles = cdiv(R, tile["R"])
        residual_gradient_RH = torch.empty_like(total_RH)
        values_gradient_RH = torch.empty_like(total_RH) if drops else residual_gradient_RH
        partial_P3H = mean_R.new_empty(min(PROGRAMS, tiles), 3, H)
        kernels.norm_backward[(len(partial_P3H),)](
            *(of_total_RH, gradient_RH, total_RH, weight_H, seed, mean_R, inverse_R),
            *(values_gradient_RH, residual_gradient_RH, partial_P3H, R, H, tiles, *ctx.dropout),
            **tile,
            DROPOUT=drops,
        )
        gradient_3H = column_sums(partial_P3H.flatten(1), weight_H.dtype).view(3, H)
        _, of_residual, _, _, of_bias, _, of_values_bias = ctx.needs_input_grad
        return (
            values_gradient_RH.view(ctx.shape),
            residual_gradient_RH.view(ctx.shape) if of_residual else None,
            None,
            gradient_3H[0],
            gradient_3H[1] if of_bias else None,
            None,
            gradient_3H[2] if of_values_bias else None,
        )
