"""softmax(Q K^T / sqrt(D) + bias) V, with dropout on the probabilities.

PyTorch's own function, but for training on a CPU: for a learned bias or dropout it has no fast kernel there, and takes
the products of bf16 in fp32. An export carries this file.

Shape letters: B batch, N heads, L length, D head size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.dropout import kept


def attend(query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """The context [B, N, L, D]; `bias` is added to the scaled scores and broadcasts to [B, N, L, L]."""
    learning = torch.is_grad_enabled() and (dropout > 0 or bias.requires_grad)
    if not learning or query_BNLD.device.type != "cpu" or torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(query_BNLD, key_BNLD, value_BNLD, attn_mask=bias, dropout_p=dropout)
    bias_BNLL = bias.expand(*query_BNLD.shape[:3], key_BNLD.shape[2])
    return _Attend.apply(query_BNLD, key_BNLD, value_BNLD, bias_BNLL, dropout)


class _Attend(torch.autograd.Function):
    """Keeps the probabilities and what dropout left of them; X stands for B x N."""

    @staticmethod
    def forward(
        ctx: Any, query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, bias_BNLL: Tensor, dropout: float
    ) -> Tensor:
        query_XLD, key_XLD, value_XLD = (part.flatten(0, 1) for part in (query_BNLD, key_BNLD, value_BNLD))
        scale = query_XLD.shape[-1] ** -0.5
        scores_XLL = torch.baddbmm(bias_BNLL.flatten(0, 1), query_XLD, key_XLD.mT, alpha=scale)
        p_XLL = scores_XLL.softmax(-1)
        kept_XLL = kept(p_XLL.shape, dropout, p_XLL.dtype) if dropout else None
        ctx.save_for_backward(query_XLD, key_XLD, value_XLD, p_XLL, kept_XLL)
        return torch.bmm(_times(p_XLL, kept_XLL), value_XLD).view_as(query_BNLD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BNLD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        query_XLD, key_XLD, value_XLD, p_XLL, kept_XLL = ctx.saved_tensors
        gradient_XLD = gradient_BNLD.flatten(0, 1)
        scale = query_XLD.shape[-1] ** -0.5
        gradient_value_XLD = torch.bmm(_times(p_XLL, kept_XLL).mT, gradient_XLD)
        gradient_p_XLL = _times(torch.bmm(gradient_XLD, value_XLD.mT), kept_XLL)
        gradient_XLL = torch._softmax_backward_data(gradient_p_XLL, p_XLL, -1, p_XLL.dtype)
        gradient_query_XLD = torch.bmm(gradient_XLL, key_XLD).mul_(scale)
        gradient_key_XLD = torch.bmm(gradient_XLL.mT, query_XLD).mul_(scale)
        batch = gradient_BNLD.shape[:2]
        return (
            gradient_query_XLD.unflatten(0, batch),
            gradient_key_XLD.unflatten(0, batch),
            gradient_value_XLD.unflatten(0, batch),
            gradient_XLL.unflatten(0, batch) if ctx.needs_input_grad[3] else None,
            None,
        )


def _times(values: Tensor, factors: Tensor | None) -> Tensor:
    return values if factors is None else values * factors
