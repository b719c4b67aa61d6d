"""Claims about gradients in half precision: what thousands of tokens give one weight is added up in fp32."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.model.encoder import ElectraEncoder
from pretrain.model.half_precision import Embedding, LayerNorm, look_up
from pretrain.presets import preset

ROUNDING = 2.0**-8
"""Of bf16, from one number to the next."""
ROWS, SIZE = 4096, 32


def off(ours: Tensor | None, exact: Tensor | None) -> float:
    """Relative difference in norm."""
    assert ours is not None and exact is not None
    return float((ours.double() - exact.double()).norm() / exact.double().norm())


def alike(*shape: int) -> Tensor:
    """Gradients that mostly point the same way, as those of a bias do at the start of training."""
    return (1 + 0.3 * torch.randn(*shape)).bfloat16()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def normalized(layer: nn.LayerNorm, input_XH: Tensor, gradient_XH: Tensor) -> Tensor:
    output_XH = layer(input_XH)
    output_XH.backward(gradient_XH)
    return output_XH


def test_the_gradients_of_layer_norm_are_those_of_float64_to_a_rounding() -> None:
    layer = LayerNorm(SIZE).bfloat16()
    nn.init.normal_(layer.weight)
    exact = nn.LayerNorm(SIZE).double()
    exact.load_state_dict(layer.state_dict())
    input_XH, gradient_XH = (5 + torch.randn(8, ROWS // 8, SIZE)).bfloat16(), alike(8, ROWS // 8, SIZE)
    inputs = [input_XH.clone().requires_grad_(), input_XH.double().requires_grad_()]
    normalized(layer, inputs[0], gradient_XH)
    normalized(exact, inputs[1], gradient_XH.double())
    assert off(layer.bias.grad, exact.bias.grad) < ROUNDING
    assert off(layer.weight.grad, exact.weight.grad) < ROUNDING
    assert off(inputs[0].grad, inputs[1].grad) < 4 * ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_itself_is_pytorchs(dtype: torch.dtype) -> None:
    layer, theirs = LayerNorm(SIZE).to(dtype), nn.LayerNorm(SIZE).to(dtype)
    input_XH = torch.randn(3, 5, SIZE, dtype=dtype)
    assert torch.equal(layer(input_XH), theirs(input_XH))
    with torch.no_grad():
        assert torch.equal(layer(input_XH), theirs(input_XH))


@pytest.mark.parametrize("rows", [2, 100, 100_000], ids=["fewer rows than tokens", "as few", "more rows"])
def test_the_gradient_of_a_table_is_that_of_float64_to_a_rounding(rows: int) -> None:
    table = Embedding(rows, SIZE).bfloat16()
    ids_X = torch.randint(2, (8, ROWS // 8))  # half of the tokens each
    gradient_XE = alike(8, ROWS // 8, SIZE)
    output_XE = table(ids_X)
    output_XE.backward(gradient_XE)
    exact = table.weight.detach().double().requires_grad_()
    F.embedding(ids_X, exact).backward(gradient_XE.double())
    assert torch.equal(output_XE, table.weight[ids_X])
    assert off(table.weight.grad, exact.grad) < ROUNDING
    assert not table.weight.grad[2:].any()


def test_a_table_in_fp32_is_pytorchs() -> None:
    weight, ids_X = torch.randn(10, SIZE, requires_grad=True), torch.randint(10, (7, 3))
    assert torch.equal(look_up(ids_X, weight), F.embedding(ids_X, weight))


def test_in_bf16_an_encoders_gradient_is_that_of_fp32_to_some_roundings() -> None:
    """PyTorch's own kernels were half off in some biases, and three quarters in the table of segments."""
    encoder = ElectraEncoder(preset("tiny").run.model.discriminator(500)).eval().bfloat16()
    exact = copy.deepcopy(encoder).float()
    ids_BL = torch.randint(500, (16, 128))
    everywhere, gradient_H = torch.ones_like(ids_BL), torch.randn(encoder.config.hidden_size).bfloat16()
    for model in (encoder, exact):
        hidden_BLH = model(ids_BL, everywhere, 0 * ids_BL)
        hidden_BLH.backward(gradient_H.to(hidden_BLH.dtype).expand_as(hidden_BLH))
    for (name, ours), theirs in zip(encoder.named_parameters(), exact.parameters(), strict=True):
        if not name.endswith("key.bias"):  # which changes no attention: its gradient is zero
            assert off(ours.grad, theirs.grad) < 16 * ROUNDING, name
