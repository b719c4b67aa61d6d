"""Claims about the CPU operations, against float64 and PyTorch's own."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_sampler.foundation import machine
from pretrain.model import ops
from pretrain.model.kernels import cpu_ops
from pretrain.model.kernels.cpu_ops import attend, dropout, kept, layer_norm, linear, look_up
from pretrain.presets import preset

FORMS = (attend, dropout, layer_norm, linear, look_up)
B, N, L, D = 2, 3, 7, 4
HALF_AND_FULL = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
ROUNDING = 2.0**-8
"""Relative spacing of bf16 numbers."""
ROWS, SIZE = 4096, 32


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def in_use(plain_ops: None) -> None:
    cpu_ops.use(onednn=True)


@pytest.mark.parametrize(
    ("cpu", "ours"),
    [
        ("vendor_id : AuthenticAMD\nflags : avx2 avx512bw avx512_bf16", True),
        ("vendor_id : GenuineIntel\nflags : avx2 avx512bw avx512_bf16", False),
        ("vendor_id : AuthenticAMD\nflags : avx2", False),
        ("Features : asimd", False),
    ],
)
def test_fp32_products_are_onednns_only_where_these_are_faster(
    cpu: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_ops: None
) -> None:
    (tmp_path / "cpuinfo").write_text(f"{cpu}\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    cpu_ops.use()
    assert (ops.linear is linear) is ours
    assert ops.attend is cpu_ops.attend


def test_layers_compute_all_tokens_and_at_most_127_paddings() -> None:
    visible_BL = torch.arange(64) < torch.tensor([64, 50, 31, 64, 1, 9])[:, None]
    places_T = cpu_ops.tokens_of(visible_BL)
    assert places_T is not None and len(places_T) == 256  # for 219 tokens
    assert (places_T.diff() > 0).all() and visible_BL.flatten()[places_T].sum() == 219
    visible_BL[1:3] = True  # 266 tokens are 384 rows, as many as there are positions
    assert cpu_ops.tokens_of(visible_BL) is None


def test_each_replaces_its_plain_form(in_use: None) -> None:
    for form in FORMS:
        assert getattr(ops, form.__name__) is form
    values, layer = torch.randn(5, 7), ops.Linear(7, 3)
    assert torch.equal(layer(values), linear(values, layer.weight, layer.bias))
    torch.manual_seed(1)
    dropped = ops.Dropout(0.3).train()(values)
    torch.manual_seed(1)
    assert torch.equal(dropped, values * kept(values.shape, 0.3, values.dtype))


# Attention


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Query, key, value [B, N, L, D] and a learned bias [B, N, L, L] that hides the end of the second sequence."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, B, N, L, D, dtype=dtype).unbind(0)
    bias = torch.randn(B, N, L, L, dtype=dtype)
    bias[1, ..., 5:] = torch.finfo(dtype).min
    return tuple(part.detach().requires_grad_() for part in (query, key, value, bias))


def gradients(context_BNLD: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weights_BNLD = torch.linspace(-1, 1, context_BNLD.numel()).to(context_BNLD.dtype).view_as(context_BNLD)
    return torch.autograd.grad((context_BNLD * weights_BNLD).sum(), inputs)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_output_and_gradients_are_the_formulas_and_dropout_multiplies_both_by_the_same_factors(
    p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, key, value, bias = inputs = example()
    factors_YLL = kept(torch.Size([B * N, L, L]), p, torch.float64)
    monkeypatch.setattr(cpu_ops, "kept", lambda *_: factors_YLL)
    p_BNLL = (query @ key.mT / D**0.5 + bias).softmax(-1)
    by_hand = (p_BNLL * factors_YLL.view_as(p_BNLL)) @ value
    ours = attend(query, key, value, bias, p)
    assert torch.allclose(ours, by_hand, rtol=1e-12)
    for own, reference in zip(gradients(ours, inputs), gradients(by_hand, inputs), strict=True):
        assert torch.allclose(own, reference, rtol=1e-10, atol=1e-12)


def test_a_bias_for_all_heads_and_sequences_gets_the_sum_of_their_gradients() -> None:
    query, key, value, bias = example()
    shared_11LL = bias[:1, :1].detach().requires_grad_()
    spread_BNLL = shared_11LL.detach().expand(B, N, L, L).clone().requires_grad_()
    (shared,) = gradients(attend(query, key, value, shared_11LL, 0.0), (shared_11LL,))
    (spread,) = gradients(attend(query, key, value, spread_BNLL, 0.0), (spread_BNLL,))
    assert torch.allclose(shared, spread.sum((0, 1), keepdim=True), rtol=1e-12)


def test_bf16_is_about_as_close_to_float64_as_pytorchs_function() -> None:
    query, key, value, bias = exact = example()
    reference = [part.float() for part in gradients(attend(query, key, value, bias, 0.0), exact)]
    query, key, value, bias = inputs = tuple(part.detach().bfloat16().requires_grad_() for part in exact)
    ours = gradients(attend(query, key, value, bias, 0.0), inputs)
    theirs = gradients(F.scaled_dot_product_attention(query, key, value, attn_mask=bias), inputs)
    for own, peer, true in zip(ours, theirs, reference, strict=True):
        allowed = 3 * (peer.float() - true).norm() + 0.01 * true.norm()
        assert (own.float() - true).norm() < allowed


def test_hidden_positions_have_no_weight() -> None:
    query, key, value, bias = example(torch.float32)
    other = value.detach().clone()
    other[1, :, 5:] = 1e3
    assert torch.equal(attend(query, key, value, bias, 0.0), attend(query, key, other, bias, 0.0))


# Dropout: its rate, scale, independence and seeds


@pytest.mark.parametrize("dtype", HALF_AND_FULL)
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 1 - 1e-9])
def test_the_factors_are_zero_or_the_inverse_of_the_kept_share_in_any_precision(p: float, dtype: torch.dtype) -> None:
    dropped = min(round(p * 65536), 65535)
    factors = kept(torch.Size([300, 1001]), p, dtype)
    assert factors.dtype == dtype and factors.shape == (300, 1001)
    expected = torch.tensor([0.0, 65536 / (65536 - dropped)], dtype=torch.float64).to(dtype)
    assert set(factors.unique().tolist()) == set(expected[0 if dropped else 1 :].tolist())


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_dropped_share_is_p_and_the_mean_is_preserved(p: float) -> None:
    factors = kept(torch.Size([1000, 1001]), p, torch.float32)
    deviation = (p * (1 - p) / factors.numel()) ** 0.5
    assert abs((factors == 0).float().mean().item() - p) < 4 * deviation
    assert abs(factors.mean().item() - 1) < 4 * deviation / (1 - p)


def test_every_lane_of_a_random_word_and_every_pair_of_lanes_is_equally_likely() -> None:
    dropped = kept(torch.Size([400_000, 4]), 0.1, torch.float64) == 0
    share_4 = dropped.double().mean(0)
    assert (share_4 - 0.1).abs().max().item() < 4 * (0.09 / 400_000) ** 0.5
    correlation_44 = torch.corrcoef(dropped.double().T) - torch.eye(4)
    assert correlation_44.abs().max().item() < 4 / 400_000**0.5


def test_the_gradient_has_the_same_factor_as_the_value() -> None:
    values = torch.randn(37, 41, requires_grad=True)
    dropped = dropout(values, 0.3)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(dropped, values.detach() * values.grad)


@pytest.mark.parametrize("dtype", HALF_AND_FULL)
def test_the_choice_depends_on_the_seed_and_not_on_the_precision(dtype: torch.dtype) -> None:
    def drawn(seed: int, dtype: torch.dtype) -> Tensor:
        torch.manual_seed(seed)
        return kept(torch.Size([513]), 0.1, dtype) > 0

    assert torch.equal(drawn(3, dtype), drawn(3, torch.float32))
    assert not torch.equal(drawn(3, dtype), drawn(4, dtype))


def test_nothing_is_dropped_outside_training_or_with_probability_0(in_use: None) -> None:
    values = torch.randn(9)
    assert torch.equal(ops.Dropout(0.5).eval()(values), values)
    assert torch.equal(ops.Dropout(0.0).train()(values), values)


# Gradients in half precision: sums over thousands of tokens are computed in fp32


def off(ours: Tensor | None, exact: Tensor | None) -> float:
    """Norm of the difference, relative to the exact norm."""
    assert ours is not None and exact is not None
    return float((ours.double() - exact.double()).norm() / exact.double().norm())


def alike(*shape: int) -> Tensor:
    """Gradients that mostly point the same way, as the gradients of biases do early in training."""
    return (1 + 0.3 * torch.randn(*shape)).bfloat16()


def test_the_gradients_of_layer_norm_are_those_of_float64_within_one_rounding(in_use: None) -> None:
    layer = ops.LayerNorm(SIZE).bfloat16()
    nn.init.normal_(layer.weight)
    exact = nn.LayerNorm(SIZE).double()
    exact.load_state_dict(layer.state_dict())
    input_XH, gradient_XH = (5 + torch.randn(8, ROWS // 8, SIZE)).bfloat16(), alike(8, ROWS // 8, SIZE)
    inputs = [input_XH.clone().requires_grad_(), input_XH.double().requires_grad_()]
    layer(inputs[0]).backward(gradient_XH)
    exact(inputs[1]).backward(gradient_XH.double())
    assert off(layer.bias.grad, exact.bias.grad) < ROUNDING
    assert off(layer.weight.grad, exact.weight.grad) < ROUNDING
    assert off(inputs[0].grad, inputs[1].grad) < 4 * ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_itself_is_pytorchs(dtype: torch.dtype) -> None:
    input_XH, weight_H, bias_H = (torch.randn(*shape, dtype=dtype) for shape in ((3, 5, SIZE), (SIZE,), (SIZE,)))
    for learning in (True, False):
        with torch.set_grad_enabled(learning):
            ours = layer_norm(input_XH, weight_H.requires_grad_(), bias_H, 1e-5)
            assert torch.equal(ours, F.layer_norm(input_XH, (SIZE,), weight_H, bias_H, 1e-5))


@pytest.mark.parametrize("rows", [2, 100, 100_000], ids=["fewer rows than tokens", "as few", "more rows"])
def test_the_gradient_of_an_embedding_table_is_that_of_float64_within_one_rounding(rows: int, in_use: None) -> None:
    table = ops.Embedding(rows, SIZE).bfloat16()
    ids_X = torch.randint(2, (8, ROWS // 8))  # half of the tokens for each row
    gradient_XE = alike(8, ROWS // 8, SIZE)
    output_XE = table(ids_X)
    output_XE.backward(gradient_XE)
    exact = table.weight.detach().double().requires_grad_()
    F.embedding(ids_X, exact).backward(gradient_XE.double())
    assert torch.equal(output_XE, table.weight[ids_X])
    assert off(table.weight.grad, exact.grad) < ROUNDING
    assert table.weight.grad is not None and not table.weight.grad[2:].any()


def test_a_table_in_fp32_uses_pytorchs_gradient() -> None:
    table_VE, ids_X = torch.randn(10, SIZE, requires_grad=True), torch.randint(10, (7, 3))
    assert torch.equal(look_up(ids_X, table_VE), F.embedding(ids_X, table_VE))


@pytest.mark.parametrize("name", ["tiny", "modern_tiny"])
def test_in_bf16_an_encoders_gradient_is_that_of_fp32_within_a_few_roundings(name: str, in_use: None) -> None:
    """PyTorch's own kernels made errors of a half in some biases, and of three quarters in the segment table."""
    model = preset(name).model
    encoder = model.parts.encoder(model.discriminator(500)).eval().bfloat16()
    exact = copy.deepcopy(encoder).float()
    ids_BL = torch.randint(500, (16, 128))
    everywhere, gradient_H = torch.ones_like(ids_BL), torch.randn(encoder.config.hidden_size).bfloat16()
    for form in (encoder, exact):
        hidden_BLH = form(ids_BL, everywhere, 0 * ids_BL)
        hidden_BLH.backward(gradient_H.to(hidden_BLH.dtype).expand_as(hidden_BLH))
    for (name, ours), theirs in zip(encoder.named_parameters(), exact.parameters(), strict=True):
        if not name.endswith("key.bias"):  # a key bias changes no attention, so its gradient is zero
            assert off(ours.grad, theirs.grad) < 16 * ROUNDING, name


# Products in fp32


def results(values: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Output, and the gradients of input, weight and bias."""
    wanted = [part.detach().requires_grad_() for part in (values, weight, bias) if part is not None]
    output = linear(*wanted)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return [output, *torch.autograd.grad((output * weights).sum(), wanted)]


@pytest.mark.skipif(not cpu_ops.ONEDNN, reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize(("inputs", "outputs"), [(5, 33), (33, 5), (16, 1)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("leading", [(), (7,), (2, 3), (2, 3, 4)])
def test_output_and_gradients_are_those_of_float64(
    inputs: int, outputs: int, has_bias: bool, leading: tuple[int, ...]
) -> None:
    values, weight = torch.randn(*leading, inputs), torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if has_bias else None
    exact = results(values.double(), weight.double(), bias.double() if bias is not None else None)
    for ours, reference in zip(results(values, weight, bias), exact, strict=True):
        assert ours.shape == reference.shape and ours.dtype == torch.float32
        assert torch.allclose(ours.double(), reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("values", [torch.randn(8, 6).T, torch.randn(6, 16)[:, ::2]], ids=["transposed", "strided"])
def test_a_transposed_or_strided_input_gives_the_same_result(values: Tensor) -> None:
    weight = torch.randn(3, 8)
    assert torch.equal(linear(values, weight), linear(values.contiguous(), weight))


def test_a_frozen_weight_gets_no_gradient_but_the_input_does() -> None:
    values, weight = torch.randn(4, 6, requires_grad=True), torch.randn(3, 6)
    linear(values, weight).sum().backward()
    assert values.grad is not None
    assert torch.allclose(values.grad, weight.sum(0).expand(4, 6), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_bitwise_pytorchs(dtype: torch.dtype) -> None:
    values, weight, bias = (torch.randn(*shape, dtype=dtype) for shape in ((4, 6), (3, 6), (3,)))
    assert torch.equal(linear(values, weight, bias), F.linear(values, weight, bias))
