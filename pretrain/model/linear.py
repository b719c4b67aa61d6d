"""Dense layers whose fp32 products on a CPU are oneDNN's.

PyTorch's `F.linear` takes MKL's there, which on an AMD processor reach half the speed (docs/speed.md); in other
precisions and on a GPU it is used as it is. An export carries this file.

Shape letters: X any leading dimensions, R rows (their product), I inputs, O outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Not so in PyTorch's builds for other processors than x86 and Arm."""


class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Returns x W^T + b, [X, O]."""
    fp32 = input_XI.dtype == weight_OI.dtype == torch.float32
    eager = not torch.compiler.is_compiling()  # the compiler chooses its products itself
    if not (AVAILABLE and fp32 and eager and input_XI.device.type == "cpu" and input_XI.numel()):
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
        return (
            _product(gradient_RO, weight_OI.T) if needs_input else None,
            _transposed_product(gradient_RO, input_RI) if needs_weight else None,
            gradient_RO.sum(0) if needs_bias else None,
        )


def _transposed_product(left_RO: Tensor, right_RI: Tensor) -> Tensor:
    """Returns left^T right, [O, I]; by the transpose of the result where that has fewer rows, which is faster."""
    if left_RO.shape[1] > right_RI.shape[1]:
        return _product(right_RI.T, left_RO.T).T
    return _product(left_RO.T, right_RI.T)


def _product(left_RI: Tensor, right_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Returns left right^T + bias, [R, O]."""
    return torch.ops.mkldnn._linear_pointwise(left_RI, right_OI, bias_O, "none", [], "")
