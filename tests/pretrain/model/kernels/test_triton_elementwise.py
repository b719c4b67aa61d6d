"""Claims about GELU and LayerNorm in Triton, whose kernels run interpreted on the CPU, against float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.model import ops

pytest.importorskip("triton")

from pretrain.model.kernels import triton_elementwise
from pretrain.model.kernels.triton_elementwise import column_sums, gelu_linear, layer_norm, norm_residual, tile_of

EXACT = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Norm of the error allowed, relative to the norm of the result."""


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)


def in_float64(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(leaf.detach().double().requires_grad_() for leaf in given)


def results(output: Tensor, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The output, and the gradients of its product with fixed numbers."""
    gradient = torch.linspace(-2, 3, output.numel()).roll(7).view_as(output).to(output.dtype)
    return output.detach(), *torch.autograd.grad(output, given, gradient)


def assert_close(ours: tuple[Tensor, ...], exact: tuple[Tensor, ...], allowed: float) -> None:
    for own, reference in zip(ours, exact, strict=True):
        assert own.isfinite().all()
        assert (own.double() - reference.double()).norm() <= allowed * reference.double().norm()


# GELU


@pytest.mark.parametrize(
    ("shape", "sizes", "dtype"),
    [
        ((3, 7), (24, 40), torch.float32),
        ((41,), (32, 200), torch.float16),
        ((2, 19), (16, 128), torch.bfloat16),
        ((2, 3), (4, 8), torch.float64),
    ],
    ids=str,
)
def test_gelu_of_a_dense_layer_is_that_of_float64(
    shape: tuple[int, ...], sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    inner, outer = sizes
    given = leaves((*shape, inner), (outer, inner), (outer,), dtype=dtype)
    exact = in_float64(given)
    by_hand = results(F.gelu(F.linear(*exact)), exact)
    assert_close(results(gelu_linear(*given), given), by_hand, 2 * EXACT[dtype])


# LayerNorm


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 5, 48), torch.float32),
        ((70, 64), torch.float16),
        ((2, 3, 768), torch.bfloat16),
        ((2, 1024), torch.float32),
        ((2, 24), torch.float64),
    ],
    ids=str,
)
def test_layer_norm_of_a_sum_is_that_of_float64(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = leaves(shape, shape, shape[-1:], shape[-1:], dtype=dtype)
    values, residual, weight, bias = exact = in_float64(given)
    by_hand = results(F.layer_norm(residual + values, weight.shape, weight, bias, 1e-12), exact)
    values, residual, weight, bias = given
    assert_close(results(norm_residual(values, residual, 0.0, weight, bias, 1e-12)[1], given), by_hand, EXACT[dtype])


@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 5, 48), torch.float32), ((70, 64), torch.float16), ((2, 3, 768), torch.bfloat16)],
    ids=str,
)
def test_a_sum_and_its_layer_norm_without_a_bias_both_pass_their_gradients_on_and_drop_the_same(
    shape: tuple[int, ...], dtype: torch.dtype, p: float
) -> None:
    """As in a modern layer, which adds to the sum what it makes of the norm."""
    given = leaves(shape, shape, shape[-1:], dtype=dtype)
    factor = kept((math.prod(shape[:-1]), shape[-1]), p).view(shape)
    values, residual, weight = exact = in_float64(given)
    total = residual + values * factor
    by_hand = results(total + 3 * F.layer_norm(total, weight.shape, weight, None, 1e-5), exact)
    values, residual, weight = given
    ours, normal = norm_residual(values, residual, p, weight, None, 1e-5)
    assert_close((ours.detach(),), (total.detach(),), EXACT[dtype])
    assert_close(results(ours + 3 * normal, given), by_hand, 2 * EXACT[dtype])


@pytest.mark.parametrize("learns", [True, False], ids=["bias", "fixed bias"])
@pytest.mark.parametrize(
    ("p", "dtype"),
    [(0.25, torch.float32), (0.0, torch.float16), (0.25, torch.bfloat16), (0.0, torch.float64)],
    ids=str,
)
def test_an_output_layer_has_the_gradients_of_float64(p: float, dtype: torch.dtype, learns: bool) -> None:
    dense, norm = ops.Linear(24, 48), ops.ResidualLayerNorm(48)
    for parameter in (*dense.parameters(), *norm.parameters()):
        parameter.data = torch.randn_like(parameter).to(dtype)
    dense.bias.requires_grad_(learns)
    x, residual = leaves((3, 5, 24), (3, 5, 48), dtype=dtype)
    given = tuple(
        leaf for leaf in (x, residual, dense.weight, norm.weight, norm.bias, dense.bias) if leaf.requires_grad
    )
    factor = kept((15, 48), p).view(3, 5, 48)
    ours = results(triton_elementwise.residual_output(x, dense, residual, p, norm), given)
    x, residual, weight, scale, shift, bias = exact = in_float64((*given[:5], dense.bias))
    total = residual + F.linear(x, weight, bias) * factor
    by_hand = results(F.layer_norm(total, scale.shape, scale, shift, norm.eps), exact[: len(given)])
    assert_close(ours, by_hand, 3 * EXACT[dtype])


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 5, 48), torch.float32),
        ((70, 64), torch.float16),
        ((2, 3, 768), torch.bfloat16),
        ((2, 24), torch.float64),
    ],
    ids=str,
)
def test_layer_norm_is_that_of_float64_with_or_without_a_bias(
    shape: tuple[int, ...], dtype: torch.dtype, biased: bool
) -> None:
    given = leaves(shape, *[shape[-1:]] * (1 + biased), dtype=dtype)
    values, weight, *bias = exact = in_float64(given)
    by_hand = results(F.layer_norm(values, weight.shape, weight, bias[0] if biased else None, 1e-5), exact)
    values, weight, *bias = given
    assert_close(results(layer_norm(values, weight, bias[0] if biased else None, 1e-5), given), by_hand, EXACT[dtype])


def test_rows_of_equal_values_give_finite_gradients() -> None:
    values, residual, weight, bias = given = leaves((4, 32), (4, 32), (32,), (32,), dtype=torch.float32)
    with torch.no_grad():
        values.fill_(1.0)
        residual[:2] = 3.0
        residual[2:] = 1e4
        residual[3, 0] += 1e-3
    ours = results(norm_residual(values, residual, 0.0, weight, bias, 1e-12)[1], given)
    plain = results(ops.norm_residual(values, residual, 0.0, weight, bias, 1e-12)[1], given)
    assert all(part.isfinite().all() for part in ours)
    assert torch.allclose(ours[0][:3], plain[0][:3])


def kept(shape: tuple[int, int], p: float) -> Tensor:
    """The factors of dropout that the kernel draws from PyTorch's current seed: 0 where no gradient arrives."""
    state = torch.get_rng_state()
    values = torch.ones(shape).requires_grad_()
    residual, weight = torch.randn(shape), torch.randn(shape[1])
    torch.set_rng_state(state)
    _, output = norm_residual(values, residual, p, weight, None, 1e-12)
    (gradient,) = torch.autograd.grad(output, values, torch.randn(shape))
    torch.set_rng_state(state)
    return (gradient != 0) / (1 - p)


def test_dropout_keeps_the_right_share_and_rows_and_columns_differ() -> None:
    torch.manual_seed(1)
    dropped = kept((128, 256), 0.1) == 0
    assert abs(dropped.double().mean().item() - 0.1) < 4 * (0.09 / dropped.numel()) ** 0.5
    for lines in (dropped, dropped.T):
        correlation = torch.corrcoef(lines.double()) - torch.eye(len(lines))
        assert correlation.abs().max().item() < 6 / lines.shape[1] ** 0.5


def test_dropout_follows_pytorchs_seed() -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(kept((8, 64), 0.5))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


# Sums of columns


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(7, 40), (1100, 130), (4200, 1)], ids=str)
def test_sums_of_columns_are_those_of_float64_rounded_once(shape: tuple[int, int], dtype: torch.dtype) -> None:
    (values,) = leaves(shape, dtype=dtype)
    exact = values.detach().double().sum(0)
    spacing = torch.finfo(dtype).eps * exact.abs() + 1e-6 * len(values) ** 0.5
    assert ((column_sums(values.detach(), dtype).double() - exact).abs() <= spacing).all()


# All


def test_two_runs_have_the_same_bits_with_more_tiles_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_elementwise, "PROGRAMS", 2)
    rows = 4 * tile_of(16)["R"] + 5  # two programs have two tiles or three
    values, residual, weight, bias = given = leaves((rows, 16), (rows, 16), (16,), (16,), dtype=torch.float16)
    inner = (values, *leaves((16, 16), (16,), dtype=torch.float16))
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(
            (
                *results(norm_residual(values, residual, 0.1, weight, bias, 1e-12)[1], given),
                *results(gelu_linear(*inner), inner),
            )
        )
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
