"""GPU versions of the operations in `ops`, in Triton, for compute capability 8.0 (A100) and newer."""

from importlib.util import find_spec

from pretrain.model import ops

LEAST_CAPABILITY = (8, 0)
WIDEST_HEAD = 128
"""Largest head size of attention in Triton. Up to it, tiles fit the shared memory of every GPU from `LEAST_CAPABILITY`
on: 99 KB at compute capabilities 8.6, 8.9 and 12.0, more at others."""


def use(capability: tuple[int, int]) -> None:
    """Replaces the functions of `ops` in this process by Triton's, if a GPU of this compute capability can run them and
    Triton is installed.
    """
    if capability < LEAST_CAPABILITY or find_spec("triton") is None:
        return
    from pretrain.model.triton_attention import attend, attention_bias
    from pretrain.model.triton_elementwise import gelu_linear, norm_residual
    from pretrain.model.triton_vocabulary import softmax

    for form in (attend, attention_bias, gelu_linear, norm_residual, softmax):
        setattr(ops, form.__name__, form)
