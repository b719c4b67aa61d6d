"""Claims about fp32 products on a CPU, against float64."""

import pytest
import torch
import torch.nn.functional as F

from pretrain.model import linear as module
from pretrain.model.linear import Linear, linear


def results(layer: torch.nn.Linear, values: torch.Tensor) -> list[torch.Tensor]:
    """Output and the gradients of input, weight and bias."""
    given = values.detach().requires_grad_()
    output = layer(given)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    wanted = [given, *layer.parameters()]
    return [output, *torch.autograd.grad((output * weights).sum(), wanted)]


@pytest.mark.skipif(not module.AVAILABLE, reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize(("inputs", "outputs"), [(5, 33), (33, 5), (16, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("leading", [(7,), (2, 3), (2, 3, 4)])
def test_output_and_gradients_are_those_of_float64(
    inputs: int, outputs: int, bias: bool, leading: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    layer = Linear(inputs, outputs, bias=bias)
    values = torch.randn(*leading, inputs)
    own = results(layer, values)
    exact = results(layer.double(), values.double())
    for ours, reference in zip(own, exact, strict=True):
        assert ours.shape == reference.shape and ours.dtype == torch.float32
        assert torch.allclose(ours.double(), reference, rtol=1e-5, atol=1e-5)


def test_a_transposed_or_strided_input_gives_the_same() -> None:
    torch.manual_seed(0)
    values, layer = torch.randn(8, 6), Linear(8, 3)
    assert torch.equal(layer(values.T), layer(values.T.contiguous()))
    strided = torch.randn(6, 16)[:, ::2]
    assert torch.equal(layer(strided), layer(strided.contiguous()))


def test_a_frozen_weight_gets_no_gradient_and_the_input_its_own() -> None:
    values, weight = torch.randn(4, 6, requires_grad=True), torch.randn(3, 6)
    linear(values, weight).sum().backward()
    assert values.grad is not None
    assert torch.allclose(values.grad, weight.sum(0).expand(4, 6), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_pytorchs_own_to_the_bit(dtype: torch.dtype) -> None:
    values, weight, bias = (torch.randn(*shape, dtype=dtype) for shape in ((4, 6), (3, 6), (3,)))
    assert torch.equal(linear(values, weight, bias), F.linear(values, weight, bias))
