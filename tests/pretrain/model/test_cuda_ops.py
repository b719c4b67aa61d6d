"""Claims about the choice of Triton's operations."""

import pytest
import torch

from pretrain.model import cuda_ops, ops

pytest.importorskip("triton")
FORMS = ("attend", "attention_bias", "gelu_linear", "norm_residual", "softmax")


pytestmark = pytest.mark.usefixtures("restored_ops")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_triton_is_used_from_ampere_on(capability: tuple[int, int]) -> None:
    plain = {name: getattr(ops, name) for name in FORMS}
    cuda_ops.use(capability)
    assert not [name for name in FORMS if getattr(ops, name) is plain[name]]


def test_a_v100_keeps_pytorchs_operations() -> None:
    plain = {name: getattr(ops, name) for name in FORMS}
    cuda_ops.use((7, 0))
    assert {name: getattr(ops, name) for name in FORMS} == plain


def test_with_partitioned_weights_the_vocabulary_is_not_streamed() -> None:
    cuda_ops.use((9, 0))
    assert ops.softmax is not cuda_ops.PLAIN_SOFTMAX
    cuda_ops.use((9, 0), partitioned=True)
    assert ops.softmax is cuda_ops.PLAIN_SOFTMAX


@pytest.mark.parametrize(("head_size", "dtype"), [(64, torch.float32), (64, torch.float64), (256, torch.float16)])
def test_in_fp32_and_for_wide_heads_attention_is_pytorchs(head_size: int, dtype: torch.dtype) -> None:
    visible_BL = torch.arange(5) < torch.tensor([[5], [3]])
    query, key, value = torch.randn(3, 2, 1, 5, head_size, dtype=dtype)
    results = []
    for _ in range(2):
        bias = ops.attention_bias(visible_BL, lambda distance_X: 0.1 * distance_X[..., None], 2, head_size, dtype)
        results.append(ops.attend(query, key, value, bias, 0.0))
        cuda_ops.use((9, 0))
    assert torch.equal(*results)
