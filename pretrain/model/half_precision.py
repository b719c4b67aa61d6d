"""LayerNorm and embeddings whose gradients add up the tokens in fp32, in half precision too.

PyTorch's kernels for a CPU add them up in the precision of the weight. In bf16 a sum of terms alike stands still at 256
of them: with 2,048 word pieces the gradient of a bias came out half as large as it is. In fp32, and on a GPU, whose
kernels add up in fp32, PyTorch's own are used. An export carries this file.

Shape letters: X any leading dimensions, R rows (their product), H hidden size, E embedding size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last dimension, with weight and bias."""

    def forward(self, input_XH: Tensor) -> Tensor:
        if not (_adds_in_half(input_XH) and torch.is_grad_enabled()):
            return super().forward(input_XH)
        return _LayerNorm.apply(input_XH, self.weight, self.bias, self.eps)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_XH: Tensor, weight_H: Tensor, bias_H: Tensor, eps: float) -> Tensor:
        output_XH, mean_X1, inverse_deviation_X1 = torch.native_layer_norm(
            input_XH, weight_H.shape, weight_H, bias_H, eps
        )
        ctx.save_for_backward(input_XH, weight_H, mean_X1, inverse_deviation_X1)
        ctx.eps = eps
        return output_XH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_XH: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        input_XH, weight_H, mean_X1, inverse_deviation_X1 = ctx.saved_tensors
        gradient_input_XH, *_ = torch.ops.aten.native_layer_norm_backward(
            gradient_XH, input_XH, weight_H.shape, mean_X1, inverse_deviation_X1, weight_H, None, [True, False, False]
        )
        gradient_RH = gradient_XH.flatten(0, -2)
        normal_RH = F.layer_norm(input_XH.flatten(0, -2), weight_H.shape, eps=ctx.eps)  # cheaper made again than kept
        return gradient_input_XH, normal_RH.mul_(gradient_RH).sum(0), gradient_RH.sum(0), None


class Embedding(nn.Embedding):
    """`nn.Embedding` by `look_up`."""

    def forward(self, input: Tensor) -> Tensor:
        return look_up(input, self.weight)


def look_up(ids_X: Tensor, weight: Tensor) -> Tensor:
    """The rows of a table [rows, E] that are asked for, [X, E]."""
    if not _adds_in_half(weight):
        return F.embedding(ids_X, weight)
    if len(weight) <= ids_X.numel():
        return F.embedding(ids_X, weight.float()).to(weight.dtype)
    used, place_X = ids_X.unique(return_inverse=True)  # the whole of a large table in fp32 would cost more
    return F.embedding(place_X, F.embedding(used, weight).float()).to(weight.dtype)


def _adds_in_half(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.bfloat16, torch.float16)
