"""GPU versions of the operations in `ops`, most of them in Triton, for compute capability 8.0 (A100) and newer.

Shape letters: X any leading dimensions, R rows (their product), I inputs, O outputs, P layers or other parts.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model import ops

LEAST_CAPABILITY = (8, 0)
PLAIN_LINEARS, PLAIN_SOFTMAX = ops.linears, ops.softmax


def use(capability: tuple[int, int], partitioned: bool = False) -> None:
    """Replaces the functions of `ops` in this process by Triton's, if a GPU of this compute capability can run them and
    Triton is installed.

    With `partitioned` weights (ZeRO stage 3), functions that use weights outside the weights' own modules are not
    replaced: a weight exists only while its module runs.
    """
    if capability < LEAST_CAPABILITY or find_spec("triton") is None:
        return
    from pretrain.model.triton_attention import attend, attention_bias
    from pretrain.model.triton_elementwise import gelu_linear, norm_residual
    from pretrain.model.triton_vocabulary import softmax

    for form in (attend, attention_bias, gelu_linear, norm_residual):
        setattr(ops, form.__name__, form)
    ops.linears = PLAIN_LINEARS if partitioned else linears
    ops.softmax = PLAIN_SOFTMAX if partitioned else softmax


def linears(input_XI: Tensor, layers: Sequence[ops.Linear]) -> tuple[Tensor, ...]:
    """Computes `ops.linears`: the layers' gradients in 5 launches instead of 11 for three of them."""
    if torch.compiler.is_compiling():
        return PLAIN_LINEARS(input_XI, layers)
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    outputs: tuple[Tensor, ...] = _Linears.apply(input_XI, *weights, *biases)
    return outputs


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_XI: Tensor, *weights_and_biases: Tensor) -> tuple[Tensor, ...]:
        count = len(weights_and_biases) // 2
        ctx.save_for_backward(input_XI, *weights_and_biases[:count])
        pairs = zip(weights_and_biases[:count], weights_and_biases[count:], strict=True)
        return tuple(F.linear(input_XI, weight_OI, bias_O) for weight_OI, bias_O in pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients_XO: Tensor) -> tuple[Tensor, ...]:
        """Computes all weights' gradients in one product, all biases' in one sum, and the input's in one product per
        layer.
        """
        input_XI, *weights = ctx.saved_tensors
        input_RI = input_XI.flatten(0, -2)
        gradient_PRO = together([gradient_XO.flatten(0, -2) for gradient_XO in gradients_XO])
        input_gradient_RI = gradient_PRO[0] @ weights[0]
        for gradient_RO, weight_OI in zip(gradient_PRO[1:], weights[1:], strict=True):
            input_gradient_RI.addmm_(gradient_RO, weight_OI)
        weight_gradient_POI = gradient_PRO.mT.bmm(input_RI.expand(len(weights), -1, -1))
        return input_gradient_RI.view_as(input_XI), *weight_gradient_POI, *gradient_PRO.sum(1)


def together(parts: Sequence[Tensor]) -> Tensor:
    """Returns the parts as one tensor [P, ...]: a view if adjacent in memory, as attention's are, else a copy."""
    first, size = parts[0], parts[0].numel()
    follow = (
        part.is_contiguous()
        and part.untyped_storage()._cdata == first.untyped_storage()._cdata
        and part.storage_offset() == first.storage_offset() + number * size
        for number, part in enumerate(parts)
    )
    return (
        first.as_strided((len(parts), *first.shape), (size, *first.stride())) if all(follow) else torch.stack([*parts])
    )
