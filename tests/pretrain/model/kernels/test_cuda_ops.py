"""Claims about the choice of Triton's operations."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.model import ops
from pretrain.model.kernels import cuda_ops

pytest.importorskip("triton")
from pretrain.model.kernels import triton_elementwise

FORMS = (
    "attention_bias",
    "gelu_linear",
    "layer_norm",
    "linear",
    "linears",
    "norm_residual",
    "residual_output",
    "softmax",
)


pytestmark = pytest.mark.usefixtures("plain_ops")


@pytest.mark.parametrize(
    ("capability", "memory", "replaced"),
    [
        *((capability, {}, FORMS) for capability in ((8, 0), (9, 0), (12, 1))),
        *((capability, {"shared": 96 * 1024}, ()) for capability in ((7, 0), (9, 0))),
    ],
)
def test_triton_is_used_from_ampere_on_unless_there_is_too_little_shared_memory(
    capability: tuple[int, int], memory: dict[str, Any], replaced: tuple[str, ...]
) -> None:
    plain = {name: getattr(ops, name) for name in FORMS}
    cuda_ops.use(capability, **memory)
    assert tuple(name for name in FORMS if getattr(ops, name) is not plain[name]) == replaced


class Counted(TorchDispatchMode):
    """Counts operations by name, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("follow", [True, False], ids=["side by side", "apart"])
def test_layers_that_share_their_input_are_one_product_whose_gradients_are_those_of_each_alone(follow: bool) -> None:
    """Without a copy, if their weights and their outputs' gradients lie side by side in memory."""
    torch.manual_seed(0)
    layers = [ops.Linear(6, 4, dtype=torch.float64) for _ in range(3)]
    if follow:
        for name, together in (("weight", torch.randn(12, 6).double()), ("bias", torch.randn(12).double())):
            for layer, part in zip(layers, together.chunk(3), strict=True):
                layer.get_parameter(name).data = part
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 5, 3, 4, dtype=torch.float64).unbind(2)
    leaves = [x, *(parameter for layer in layers for parameter in layer.parameters())]
    results = []
    for form in (ops.linears, triton_elementwise.linears):
        with Counted() as counted:
            outputs = form(x, layers)
            gradients = upstream if follow else [part.clone() for part in upstream]
            results.append([*outputs, *torch.autograd.grad(outputs, leaves, gradients)])
    assert all(torch.allclose(ours, plain, rtol=1e-12, atol=1e-13) for plain, ours in zip(*results, strict=True))
    calls = counted.calls
    assert (calls["addmm"] + calls["mm"], calls["sum"], calls["cat"]) == (3, 1, 0 if follow else 4)


def test_weights_that_stage_3_partitions_are_used_by_their_own_modules() -> None:
    cuda_ops.use((9, 0))
    assert all(getattr(ops, name) is not plain for name, plain in cuda_ops.PLAIN.items())
    cuda_ops.use((9, 0), partitioned=True)
    assert all(getattr(ops, name) is plain for name, plain in cuda_ops.PLAIN.items())
    layers, called = [ops.Linear(3, 3) for _ in range(3)], []
    for layer in layers:
        layer.register_forward_hook(lambda layer, *_: called.append(layer))
    ops.linears(torch.zeros(2, 3), layers)
    assert called == layers


@pytest.mark.parametrize(("head_size", "dtype"), [(64, torch.float32), (64, torch.float64), (256, torch.float16)])
def test_in_fp32_and_for_wide_heads_attention_is_pytorchs(head_size: int, dtype: torch.dtype) -> None:
    visible_BL = torch.arange(5) < torch.tensor([[5], [3]])
    query, key, value = torch.randn(3, 2, 1, 5, head_size, dtype=dtype)
    results = []
    for _ in range(2):
        bias = ops.attention_bias(visible_BL, lambda distance_X: 0.1 * distance_X[..., None], 2, head_size, dtype)
        results.append(bias.attend(query, key, value, 0.0))
        cuda_ops.use((9, 0))
    assert torch.equal(*results)
