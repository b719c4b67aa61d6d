"""The Triton kernels of `triton_elementwise`, which describes what they compute.

Shape letters: R rows of a tile, C columns.
"""

import triton
import triton.language as tl

from pretrain.model.kernels.attention_kernels import kept


@triton.jit
def column_sums(values, sums, rows, columns, tiles, R: tl.constexpr, C: tl.constexpr):
    """Writes the sums of columns over this program's tiles of R rows."""
    column_C = tl.program_id(1) * C + tl.arange(0, C)
    total_RC = tl.zeros([R, C], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row_R = tile * R + tl.arange(0, R)
        place_RC = row_R[:, None].to(tl.int64) * columns + column_C[None, :]
        inside_RC = (row_R[:, None] < rows) & (column_C[None, :] < columns)
        total_RC += tl.load(values + place_RC, mask=inside_RC, other=0.0).to(tl.float32)
    place_C = tl.program_id(0) * columns + column_C
    tl.store(sums + place_C, tl.sum(total_RC, 0).to(sums.dtype.element_ty), mask=column_C < columns)


@triton.jit
def gelu_backward(
    x, gradient, x_gradient, partial, rows, columns, tiles,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of GELU's input, and its sums over this program's tiles of R rows and C columns."""
    column_C = tl.program_id(1) * C + tl.arange(0, C)
    sum_C = tl.zeros([C], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row_R = tile * R + tl.arange(0, R)
        inside_RC = (row_R[:, None] < rows) & (column_C[None, :] < columns)
        place_RC = row_R[:, None].to(tl.int64) * columns + column_C[None, :]
        x_RC = tl.load(x + place_RC, mask=inside_RC, other=0.0).to(tl.float32)
        gradient_RC = tl.load(gradient + place_RC, mask=inside_RC, other=0.0).to(tl.float32)
        below_RC = 0.5 + 0.5 * tl.erf(x_RC * 0.7071067811865476)  # the normal distribution up to x, and its density
        density_RC = 0.3989422804014327 * tl.exp(-0.5 * x_RC * x_RC)
        gradient_RC *= below_RC + x_RC * density_RC
        tl.store(x_gradient + place_RC, gradient_RC.to(x_gradient.dtype.element_ty), mask=inside_RC)
        sum_C += tl.sum(gradient_RC, 0)
    tl.store(partial + tl.program_id(0).to(tl.int64) * columns + column_C, sum_C, mask=column_C < columns)


@triton.jit
def norm_forward(
    values, residual, weight, bias, seed, total, output, mean, inverse, rows, columns, dropped, factor, eps,
    R: tl.constexpr, C: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Writes residual + dropout(values), its LayerNorm, and each row's mean and inverse standard deviation.

    Without a residual, the sum is `values` itself and not written; there may be no bias.
    """
    row_R, column_C = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    inside_RC = (row_R[:, None] < rows) & (column_C[None, :] < columns)
    place_RC = row_R[:, None].to(tl.int64) * columns + column_C[None, :]
    x_RC = tl.load(values + place_RC, mask=inside_RC, other=0.0).to(tl.float32)
    if DROPOUT:
        x_RC = tl.where(kept(seed, 0, row_R, 0, C, dropped), x_RC * factor, 0.0)
    if residual is not None:
        x_RC += tl.load(residual + place_RC, mask=inside_RC, other=0.0).to(tl.float32)
        rounded_RC = x_RC.to(total.dtype.element_ty)
        tl.store(total + place_RC, rounded_RC, mask=inside_RC)
        x_RC = rounded_RC.to(tl.float32)
    mean_R = tl.sum(x_RC, 1) / columns
    x_RC = tl.where(inside_RC, x_RC - mean_R[:, None], 0.0)
    inverse_R = 1 / tl.sqrt(tl.sum(x_RC * x_RC, 1) / columns + eps)
    tl.store(mean + row_R, mean_R, mask=row_R < rows)
    tl.store(inverse + row_R, inverse_R, mask=row_R < rows)
    weight_C = tl.load(weight + column_C, mask=column_C < columns, other=0.0).to(tl.float32)
    x_RC = x_RC * inverse_R[:, None] * weight_C[None, :]
    if bias is not None:
        x_RC += tl.load(bias + column_C, mask=column_C < columns, other=0.0).to(tl.float32)[None, :]
    tl.store(output + place_RC, x_RC.to(output.dtype.element_ty), mask=inside_RC)


@triton.jit
def norm_backward(
    total_gradient, gradient, total, weight, seed, mean, inverse, values_gradient, residual_gradient, partial,
    rows, columns, tiles, dropped, factor,
    R: tl.constexpr, C: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of residual and values, and of weight, bias, and a bias in the values, summed over this
    program's tiles.

    Without dropout, values and residual have the same gradient, which is written once. `total_gradient` is what the sum
    gets beside its LayerNorm's, if anything.
    """
    column_C = tl.arange(0, C)
    weight_C = tl.load(weight + column_C, mask=column_C < columns, other=0.0).to(tl.float32)
    weight_sum_C = tl.zeros([C], tl.float32)
    bias_sum_C = tl.zeros([C], tl.float32)
    values_sum_C = tl.zeros([C], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row_R = tile * R + tl.arange(0, R)
        inside_RC = (row_R[:, None] < rows) & (column_C[None, :] < columns)
        place_RC = row_R[:, None].to(tl.int64) * columns + column_C[None, :]
        mean_R = tl.load(mean + row_R, mask=row_R < rows, other=0.0)
        inverse_R = tl.load(inverse + row_R, mask=row_R < rows, other=0.0)
        normal_RC = tl.load(total + place_RC, mask=inside_RC, other=0.0).to(tl.float32) - mean_R[:, None]
        normal_RC = tl.where(inside_RC, normal_RC * inverse_R[:, None], 0.0)
        gradient_RC = tl.load(gradient + place_RC, mask=inside_RC, other=0.0).to(tl.float32)
        weight_sum_C += tl.sum(gradient_RC * normal_RC, 0)
        bias_sum_C += tl.sum(gradient_RC, 0)
        gradient_RC *= weight_C[None, :]
        along_R = tl.sum(gradient_RC * normal_RC, 1) / columns
        gradient_RC -= (tl.sum(gradient_RC, 1) / columns)[:, None] + normal_RC * along_R[:, None]
        gradient_RC *= inverse_R[:, None]
        if total_gradient is not None:
            gradient_RC += tl.load(total_gradient + place_RC, mask=inside_RC, other=0.0).to(tl.float32)
        tl.store(residual_gradient + place_RC, gradient_RC.to(residual_gradient.dtype.element_ty), mask=inside_RC)
        if DROPOUT:
            gradient_RC = tl.where(kept(seed, 0, row_R, 0, C, dropped), gradient_RC * factor, 0.0)
            tl.store(values_gradient + place_RC, gradient_RC.to(values_gradient.dtype.element_ty), mask=inside_RC)
        values_sum_C += tl.sum(gradient_RC, 0)
    partial += tl.program_id(0) * 3 * columns
    tl.store(partial + column_C, weight_sum_C, mask=column_C < columns)
    tl.store(partial + columns + column_C, bias_sum_C, mask=column_C < columns)
    tl.store(partial + 2 * columns + column_C, values_sum_C, mask=column_C < columns)
