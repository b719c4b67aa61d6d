"""GPU versions of the operations in `ops`, most of them in Triton, for compute capability 8.0 (A100) and newer."""

from importlib.util import find_spec

import torch

from pretrain.model import ops

LEAST_CAPABILITY = (8, 0)
LEAST_SHARED = 99 * 1024
"""Bytes of shared memory that a block of threads needs for every kernel to start; all GPUs since the A100 have them."""
PLAIN = {name: getattr(ops, name) for name in ("linears", "residual_output", "softmax")}
"""Operations whose Triton form uses weights outside the weights' own modules."""
FUSED = (ops.gated_gelu, ops.rotary_heads)
"""Operations for `torch.compile`. They add along no dimension, so that no order of sums is the compiler's choice."""


def use(
    capability: tuple[int, int], partitioned: bool = False, shared: int = LEAST_SHARED, few_shapes: bool = False
) -> None:
    """Replaces the functions of `ops` in this process by Triton's, if a GPU of this compute capability and with so much
    shared memory per block can run them and Triton is installed.

    With `partitioned` weights (ZeRO stage 3), those of `PLAIN` stay: a weight exists only while its module runs. If
    `few_shapes`, `torch.compile` fuses others, and compiles each shape by itself.
    """
    if capability < LEAST_CAPABILITY or shared < LEAST_SHARED or find_spec("triton") is None:
        return
    from pretrain.model.kernels.triton_attention import attention_bias
    from pretrain.model.kernels.triton_elementwise import (
        gelu_linear,
        layer_norm,
        linear,
        linears,
        norm_residual,
        residual_output,
    )
    from pretrain.model.kernels.triton_vocabulary import softmax

    forms = (attention_bias, gelu_linear, layer_norm, linear, linears, norm_residual, residual_output, softmax)
    ops.__dict__.update({form.__name__: form for form in forms} | (PLAIN if partitioned else {}))
    if few_shapes:
        torch._dynamo.config.recompile_limit = 64  # a run has about ten shapes
        for plain in FUSED:
            setattr(ops, plain.__name__, torch.compile(plain, dynamic=False))
