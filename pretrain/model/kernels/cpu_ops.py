"""CPU versions of the operations in `ops`, for cases where PyTorch's are slow or sum in half precision.

Under torch.compile they call PyTorch's, which the compiler fuses. Measured gains: docs/evidence/speed.md,
`bench/kernels.py`.

Shape letters: X any leading dimensions, R rows (their product), I inputs, O outputs, H hidden size, V rows of a table,
E embedding size; B batch, N heads, L length, D head size, Y for B x N, T tokens.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from electra_sampler.foundation.machine import instructions, is_intel
from pretrain.model import ops

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""True if PyTorch was built with oneDNN's linear product, as on x86 and Arm."""
BITS = 16
"""Random bits per value for dropout, whose probability is rounded to so many bits: 0.1 becomes 6554 / 65536."""
HALF = (torch.bfloat16, torch.float16)
"""Types in which PyTorch sums the gradients of LayerNorm and of embeddings over tokens without widening to fp32."""

ROWS = 128
"""Layers compute multiples of so many rows: oneDNN keeps a kernel for each number of rows, up to 1,024 kernels. Without
this, `tiny` in fp32 needs 2.4 GB after 150 steps on an AMD EPYC of 2024 (AVX-512), 1.3 GB with it."""
PLAIN_LINEAR = ops.linear


def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies faster in fp32 than MKL, PyTorch's choice.

    On an AMD EPYC of 2024 with AVX-512 it does, 1.9 times. With AVX2 alone MKL is faster, 1.3 times on an AMD EPYC of
    2021; on Intel's processors too, where a step of small takes 8% less on a Xeon of 2023. On Arm PyTorch has no MKL.
    """
    return instructions() in ("avx512", "avx512_bf16", "amx") and not is_intel()


def use(onednn: bool | None = None) -> None:
    """Replaces functions of `ops` in this process by those of this module that are faster on a CPU, and products by
    oneDNN's, by default where `onednn_is_faster`.
    """
    for form in (attend, dropout, layer_norm, look_up, tokens_of):
        setattr(ops, form.__name__, form)
    ops.linear = linear if (onednn_is_faster() if onednn is None else onednn) else PLAIN_LINEAR


def tokens_of(visible_BL: Tensor) -> Tensor | None:
    """Computes `ops.tokens_of`: all tokens, and padding up to a multiple of `ROWS`; `None` on another device."""
    visible_R, rows = visible_BL.flatten(), visible_BL.numel()
    if visible_BL.device.type != "cpu" or (tokens := int(visible_R.sum())) > rows - ROWS:
        return None
    return (visible_R | ((~visible_R).cumsum(0) <= -tokens % ROWS)).nonzero().squeeze(1)


def attend(query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, added_BNLL: Tensor, dropout: float) -> Tensor:
    """Computes `ops.attend`, faster for a learned bias or dropout.

    PyTorch has no fast kernel for either, and computes bf16 products in fp32.
    """
    learning = torch.is_grad_enabled() and (dropout > 0 or added_BNLL.requires_grad)
    if not learning or torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(query_BNLD, key_BNLD, value_BNLD, attn_mask=added_BNLL, dropout_p=dropout)
    bias_BNLL = added_BNLL.expand(*query_BNLD.shape[:3], key_BNLD.shape[2])
    return _Attend.apply(query_BNLD, key_BNLD, value_BNLD, bias_BNLL, dropout)


class _Attend(torch.autograd.Function):
    """Attention that saves the probabilities and the dropout factors for the backward."""

    @staticmethod
    def forward(
        ctx: Any, query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, bias_BNLL: Tensor, dropout: float
    ) -> Tensor:
        query_YLD, key_YLD, value_YLD = (part.flatten(0, 1) for part in (query_BNLD, key_BNLD, value_BNLD))
        scale = query_YLD.shape[-1] ** -0.5
        scores_YLL = torch.baddbmm(bias_BNLL.flatten(0, 1), query_YLD, key_YLD.mT, alpha=scale)
        p_YLL = scores_YLL.softmax(-1)
        kept_YLL = kept(p_YLL.shape, dropout, p_YLL.dtype) if dropout else None
        ctx.save_for_backward(query_YLD, key_YLD, value_YLD, p_YLL, kept_YLL)
        return torch.bmm(_times(p_YLL, kept_YLL), value_YLD).view_as(query_BNLD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BNLD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        query_YLD, key_YLD, value_YLD, p_YLL, kept_YLL = ctx.saved_tensors
        gradient_YLD = gradient_BNLD.flatten(0, 1)
        scale = query_YLD.shape[-1] ** -0.5
        gradient_value_YLD = torch.bmm(_times(p_YLL, kept_YLL).mT, gradient_YLD)
        gradient_p_YLL = _times(torch.bmm(gradient_YLD, value_YLD.mT), kept_YLL)
        gradient_YLL = torch._softmax_backward_data(gradient_p_YLL, p_YLL, -1, p_YLL.dtype)
        gradient_query_YLD = torch.bmm(gradient_YLL, key_YLD).mul_(scale)
        gradient_key_YLD = torch.bmm(gradient_YLL.mT, query_YLD).mul_(scale)
        batch = gradient_BNLD.shape[:2]
        return (
            gradient_query_YLD.unflatten(0, batch),
            gradient_key_YLD.unflatten(0, batch),
            gradient_value_YLD.unflatten(0, batch),
            gradient_YLL.unflatten(0, batch) if ctx.needs_input_grad[3] else None,
            None,
        )


def _times(values: Tensor, factors: Tensor | None) -> Tensor:
    return values if factors is None else values * factors


def dropout(values: Tensor, p: float) -> Tensor:
    """Computes `ops.dropout` from 16 random bits per value, many times faster than PyTorch's random numbers."""
    if torch.compiler.is_compiling():
        return F.dropout(values, p)
    return values * kept(values.shape, p, values.dtype) if p else values


def kept(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """Returns random factors: 0 with probability `p`, else 1 / (1 - p); seeded from PyTorch's default generator."""
    count = math.prod(shape)
    # NumPy's SFC64 is twice as fast as PyTorch's Mersenne Twister, which only draws the seed.
    seed = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))
    random = np.random.Generator(np.random.SFC64(seed % 2**64))
    words = torch.from_numpy(random.integers(-(2**63), 2**63, -(-count * BITS // 64)))
    bits = words.view(torch.int16)[:count]
    dropped = min(round(p * 2**BITS), 2**BITS - 1)
    first_kept, factor = dropped - 2 ** (BITS - 1), 2**BITS / (2**BITS - dropped)
    if dtype.itemsize == 2 and dropped:  # in place: 0 or 1, times the bits of the factor
        pattern = int(torch.tensor(factor, dtype=dtype).view(torch.int16))
        return bits.clamp_(first_kept - 1, first_kept).sub_(first_kept - 1).mul_(pattern).view(dtype).view(shape)
    return torch.ge(bits, first_kept, out=torch.empty(count, dtype=dtype)).mul_(factor).view(shape)


def layer_norm(input_XH: Tensor, weight_H: Tensor, bias_H: Tensor | None, eps: float) -> Tensor:
    """Computes `ops.layer_norm`, with gradients of weight and bias summed over tokens in fp32 even in half precision.

    In bf16, a sum of equal terms stops growing at 256 of them: with 2,048 word pieces, a bias's gradient came out half
    as large as it should be.
    """
    if input_XH.dtype not in HALF or not torch.is_grad_enabled():
        return F.layer_norm(input_XH, weight_H.shape, weight_H, bias_H, eps)
    return _LayerNorm.apply(input_XH, weight_H, bias_H, eps)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_XH: Tensor, weight_H: Tensor, bias_H: Tensor | None, eps: float) -> Tensor:
        output_XH, mean_X1, inverse_deviation_X1 = torch.native_layer_norm(
            input_XH, weight_H.shape, weight_H, bias_H, eps
        )
        ctx.save_for_backward(input_XH, weight_H, mean_X1, inverse_deviation_X1)
        ctx.eps = eps
        return output_XH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_XH: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        input_XH, weight_H, mean_X1, inverse_deviation_X1 = ctx.saved_tensors
        gradient_input_XH, *_ = torch.ops.aten.native_layer_norm_backward(
            gradient_XH, input_XH, weight_H.shape, mean_X1, inverse_deviation_X1, weight_H, None, [True, False, False]
        )
        gradient_RH = gradient_XH.flatten(0, -2)
        # cheaper to recompute than to save
        normal_RH = F.layer_norm(input_XH.flatten(0, -2), weight_H.shape, eps=ctx.eps)
        bias_gradient_H = gradient_RH.sum(0) if ctx.needs_input_grad[2] else None
        return gradient_input_XH, normal_RH.mul_(gradient_RH).sum(0), bias_gradient_H, None


def look_up(ids_X: Tensor, table_VE: Tensor) -> Tensor:
    """Computes `ops.look_up`, with the table's gradient summed over tokens in fp32; see `layer_norm`."""
    if table_VE.dtype not in HALF:
        return F.embedding(ids_X, table_VE)
    if len(table_VE) <= ids_X.numel():
        return F.embedding(ids_X, table_VE.float()).to(table_VE.dtype)
    used, place_X = ids_X.unique(return_inverse=True)  # converting all of a large table to fp32 would cost more
    return F.embedding(place_X, F.embedding(used, table_VE).float()).to(table_VE.dtype)


def linear(input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Computes `ops.linear`, in fp32 with oneDNN's products instead of MKL's."""
    fp32 = input_XI.dtype == weight_OI.dtype == torch.float32
    if not (ONEDNN and fp32 and input_XI.numel() and input_XI.dim() > 1) or torch.compiler.is_compiling():
        return F.linear(input_XI, weight_OI, bias_O)
    return _Linear.apply(input_XI.flatten(0, -2), weight_OI, bias_O).unflatten(0, input_XI.shape[:-1])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(input_RI, weight_OI)
        return _product(input_RI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_RO: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input_RI, weight_OI = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        gradient_weight_OI = None
        if needs_weight and len(weight_OI) > weight_OI.shape[1]:  # computing the transpose, with fewer rows, is faster
            gradient_weight_OI = _product(input_RI.T, gradient_RO.T).T
        elif needs_weight:
            gradient_weight_OI = _product(gradient_RO.T, input_RI.T)
        return (
            _product(gradient_RO, weight_OI.T) if needs_input else None,
            gradient_weight_OI,
            gradient_RO.sum(0) if needs_bias else None,
        )


def _product(left_RI: Tensor, right_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Returns left right^T + bias, [R, O]."""
    return torch.ops.mkldnn._linear_pointwise(left_RI, right_OI, bias_O, "none", [], "")
