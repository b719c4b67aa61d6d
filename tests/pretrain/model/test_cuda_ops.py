"""Claims about the choice of Triton's operations."""

import pytest

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
