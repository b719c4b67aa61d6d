"""Claims about attention while training on a CPU, against float64 and PyTorch's own function."""

import pytest
import torch
import torch.nn.functional as F

from pretrain.model import attention
from pretrain.model.attention import attend

B, N, L, D = 2, 3, 7, 4


def example(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Query, key, value [B, N, L, D], a learned bias [B, N, L, L] that hides the second sequence's end."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, B, N, L, D, dtype=dtype).unbind(0)
    bias = torch.randn(B, N, L, L, dtype=dtype)
    bias[1, ..., 5:] = torch.finfo(dtype).min
    return tuple(part.detach().requires_grad_() for part in (query, key, value, bias))


def gradients(context_BNLD: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    weights_BNLD = torch.linspace(-1, 1, context_BNLD.numel()).to(context_BNLD.dtype).view_as(context_BNLD)
    return torch.autograd.grad((context_BNLD * weights_BNLD).sum(), inputs)


def test_context_and_gradients_are_those_of_pytorchs_function() -> None:
    inputs = example()
    ours, theirs = attend(*inputs, dropout=0.0), F.scaled_dot_product_attention(*inputs[:3], attn_mask=inputs[3])
    assert torch.allclose(ours, theirs, rtol=1e-12)
    for own, reference in zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True):
        assert torch.allclose(own, reference, rtol=1e-10, atol=1e-12)


def test_with_dropout_the_same_factors_multiply_the_probabilities_and_their_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = example()
    factors_XLL = attention.kept(torch.Size([B * N, L, L]), 0.3, torch.float64)
    monkeypatch.setattr(attention, "kept", lambda *_: factors_XLL)
    query, key, value, bias = inputs
    p_BNLL = (query @ key.mT / D**0.5 + bias).softmax(-1)
    by_hand = (p_BNLL * factors_XLL.view_as(p_BNLL)) @ value
    ours = attend(*inputs, dropout=0.3)
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


def test_bf16_stays_as_near_to_float64_as_pytorchs_function_or_nearly_so() -> None:
    exact = example()
    inputs = tuple(part.detach().bfloat16().requires_grad_() for part in exact)
    reference = [part.float() for part in gradients(attend(*exact, dropout=0.0), exact)]
    ours = gradients(attend(*inputs, dropout=0.0), inputs)
    theirs = gradients(F.scaled_dot_product_attention(*inputs[:3], attn_mask=inputs[3]), inputs)
    for own, peer, true in zip(ours, theirs, reference, strict=True):
        allowed = 3 * (peer.float() - true).norm() + 0.01 * true.norm()
        assert (own.float() - true).norm() < allowed


def test_hidden_positions_get_no_weight() -> None:
    query, key, value, bias = example(torch.float32)
    other = value.detach().clone()
    other[1, :, 5:] = 1e3
    assert torch.equal(attend(query, key, value, bias, 0.0), attend(query, key, other, bias, 0.0))
