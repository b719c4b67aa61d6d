"""Chooses GPU versions of the operations in `ops`, in Triton, for compute capability 8.0 (A100) and newer."""

from importlib.util import find_spec

from pretrain.model import ops

LEAST_CAPABILITY = (8, 0)
PLAIN_SOFTMAX = ops.softmax


def use(capability: tuple[int, int], partitioned: bool = False) -> None:
    """Replaces the functions of `ops` in this process by Triton's, if a GPU of this compute capability can run them and
    Triton is installed.

    With `partitioned` weights (ZeRO stage 3) the softmax stays plain: the word embeddings exist only while their own
    module runs.
    """
    if capability < LEAST_CAPABILITY or find_spec("triton") is None:
        return
    from pretrain.model.triton_attention import attend, attention_bias
    from pretrain.model.triton_elementwise import gelu_linear, norm_residual
    from pretrain.model.triton_vocabulary import softmax

    for form in (attend, attention_bias, gelu_linear, norm_residual):
        setattr(ops, form.__name__, form)
    ops.softmax = PLAIN_SOFTMAX if partitioned else softmax
