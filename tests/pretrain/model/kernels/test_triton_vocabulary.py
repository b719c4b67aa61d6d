"""Claims about the softmax over the vocabulary in Triton, interpreted on a CPU, against float64."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrain.data.batches import Batch
from pretrain.method.sampling import draw_from, predict
from pretrain.model.distribution import BLOCK, Dense, Distribution, hp_loss_weights
from tests.pretrain.model.kernels.conftest import Given

pytest.importorskip("triton")
from pretrain.model.kernels import triton_vocabulary
from pretrain.model.kernels.triton_vocabulary import ROWS, Softmax, softmax

SHAPES = [((5,), 20, 300), ((1,), 7, 1), ((2, 3), 70, 128)]
"""Rows, embedding size and vocabulary: below, at and beyond a block of tokens."""
ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def example(rows: tuple[int, ...], size: int, words: int, dtype: torch.dtype) -> list[Tensor]:
    """Hidden states, table and bias, with scores of a few units."""
    torch.manual_seed(0)
    hidden, table = torch.randn(*rows, size) * 2 * size**-0.5, torch.randn(words, size)
    return [hidden.to(dtype).requires_grad_(), table.to(dtype).requires_grad_(), torch.randn(words).requires_grad_()]


def in_float64(tensors: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Copies of hidden states, table and bias, and the log-softmax of all scores."""
    hidden, table, bias = copies = [tensor.detach().double().requires_grad_() for tensor in tensors]
    return copies, (hidden @ table.T + bias).log_softmax(-1)


def assert_weights(weights: Any, expected_XV: Tensor, rtol: float = 2e-5) -> None:
    """Compares sums, the largest weight, the entropy and every block."""
    close: Callable[..., None] = torch.testing.assert_close
    padded_XV = F.pad(expected_XV.detach(), (0, -expected_XV.shape[-1] % BLOCK))  # with zeros after the last
    blocks_XNS = padded_XV.unflatten(-1, (-1, BLOCK))
    close(weights.sum_XN.double(), blocks_XNS.sum(-1), rtol=rtol, atol=1e-30)
    close(weights.largest_X.double(), expected_XV.detach().amax(-1), rtol=rtol, atol=0)
    q_XV = expected_XV.detach() / expected_XV.detach().sum(-1, keepdim=True)
    close(weights.entropy().double(), -torch.xlogy(q_XV, q_XV).sum(-1), rtol=1e-4, atol=2e-5)
    assert weights.size == expected_XV.shape[-1]
    for number in range(blocks_XNS.shape[-2]):
        block_X1 = torch.full((*expected_XV.shape[:-1], 1), number)
        close(weights.block(block_X1).double(), blocks_XNS[..., number, :], rtol=rtol, atol=1e-30)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("rows", "size", "words"), [*SHAPES, ((ROWS + 1,), 3, 130)])
def test_log_p_and_its_gradients_are_those_of_float64(
    rows: tuple[int, ...], size: int, words: int, dtype: torch.dtype
) -> None:
    tensors = example(rows, size, words, dtype)
    ids, gradient = torch.randint(words, rows), torch.randn(rows)
    ours = Softmax(*tensors).log_p(ids)
    ours.backward(gradient)
    copies, expected = in_float64(tensors)
    expected = expected.gather(-1, ids[..., None]).squeeze(-1)
    expected.backward(gradient.double())
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)
    for tensor, copy in zip(tensors, copies, strict=True):
        assert tensor.grad is not None and copy.grad is not None and tensor.grad.dtype == tensor.dtype
        assert (tensor.grad.double() - copy.grad).norm() <= ROUNDING[dtype] * copy.grad.norm() + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "size", "words"), SHAPES)
def test_the_most_likely_token_and_the_weights_of_p_are_those_of_float64(
    rows: tuple[int, ...], size: int, words: int, dtype: torch.dtype
) -> None:
    tensors = example(rows, size, words, dtype)
    p, (_, log_p_XV) = Softmax(*tensors), in_float64(tensors)
    assert torch.equal(p.top_X, log_p_XV.argmax(-1))
    assert_weights(p, log_p_XV.exp())


@pytest.mark.parametrize("exponent", [1.0, 2.0])
@pytest.mark.parametrize(("rows", "size", "words"), SHAPES)
def test_weights_by_estimated_loss_are_those_of_float64(
    rows: tuple[int, ...], size: int, words: int, exponent: float
) -> None:
    tensors = example(rows, size, words, torch.float32)
    projected, bias, original = torch.randn(*rows, size), torch.randn(words), torch.randint(words, rows)
    ours = Softmax(*tensors).times_estimated_loss(Given(projected, bias, tensors[1]), original, exponent, 1e-30)
    p = in_float64(tensors)[1].exp().detach()
    z = projected.double() @ tensors[1].detach().double().T + bias
    assert_weights(ours, hp_loss_weights(p, z, original, exponent, 1e-30), 1e-4)


def test_a_missing_bias_is_zero() -> None:
    hidden, table, _ = example((5,), 20, 300, torch.float32)
    ids, projected = torch.randint(300, (5,)), torch.randn(5, 20)
    none, zero = (Softmax(hidden, table, bias) for bias in (None, torch.zeros(300)))
    assert torch.equal(none.log_p(ids), zero.log_p(ids))
    pairs = ((none, None), (zero, torch.zeros(300)))
    weighted = (p.times_estimated_loss(Given(projected, bias, table), ids) for p, bias in pairs)
    assert torch.equal(*(weights.sum_XN for weights in weighted))


def test_parts_that_need_no_gradient_get_none() -> None:
    hidden, table, bias = example((5,), 20, 300, torch.float32)
    Softmax(hidden, table.detach(), bias.detach()).log_p(torch.zeros(5, dtype=torch.int64)).sum().backward()
    assert hidden.grad is not None and table.grad is None and bias.grad is None


def test_extreme_scores_give_finite_log_probabilities_that_are_never_positive() -> None:
    hidden = torch.tensor([[300.0], [-300.0], [0.0]])
    p = Softmax(hidden, torch.linspace(-1, 1, 300)[:, None], None)
    expected = (hidden.double() @ torch.linspace(-1, 1, 300)[None].double()).log_softmax(-1)
    for ids in (torch.full((3,), 299), torch.zeros(3, dtype=torch.int64), p.top_X):
        log_p = p.log_p(ids)
        torch.testing.assert_close(log_p.double(), expected.gather(-1, ids[:, None])[:, 0], rtol=1e-5, atol=1e-4)
        assert (log_p <= 0).all()
    assert p.entropy().isfinite().all()


class Largest(TorchDispatchMode):
    """Records the size of the largest floating-point tensor that an operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [part.numel() for part in tree_leaves(made) if isinstance(part, Tensor) and part.is_floating_point()]
        self.elements = max(self.elements, *sizes, 0)
        return made


def test_no_tensor_is_as_large_as_the_scores_and_chunks_change_only_the_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, size, words = 8, 2, 10 * BLOCK
    results = []
    for chunk in (2**25, 3 * BLOCK * rows):  # one chunk, or four of which the last is shorter
        monkeypatch.setattr(triton_vocabulary, "CHUNK", chunk)
        tensors = example((rows,), size, words, torch.float32)
        with Largest() as largest:
            p = Softmax(*tensors)
            p.log_p(torch.arange(rows)).sum().backward()
            weights = p.times_estimated_loss(Given(tensors[0].detach(), None, tensors[1]), torch.arange(rows))
            weights.block(torch.zeros(rows, 1, dtype=torch.int64))
        results.append([tensor.grad for tensor in tensors])
    assert largest.elements == 3 * BLOCK * rows  # the second time; all scores are 10 blocks
    for one, several in zip(*results, strict=True):
        torch.testing.assert_close(one, several)


def test_only_half_precision_is_streamed() -> None:
    hidden, table = torch.randn(2, 3), torch.randn(5, 3)
    for dtype in (torch.float16, torch.bfloat16):
        assert isinstance(softmax(hidden.to(dtype), table.to(dtype), None), Softmax)
    for dtype in (torch.float32, torch.float64):
        assert softmax(hidden.to(dtype), table.to(dtype), None) is None


@pytest.fixture
def one_row(batch: Batch) -> Iterator[tuple[Batch, Tensor, list[Tensor]]]:
    """A batch, uniforms over (0, 1) and the parts of scores of 300 tokens at its masked positions."""
    tensors = example((3, 2), 20, 300, torch.float32)
    yield batch, (torch.arange(6).view(3, 2) + 0.5) / 6, tensors


def test_draws_are_those_from_the_whole_distribution(one_row: tuple[Batch, Tensor, list[Tensor]]) -> None:
    batch, uniforms, (hidden, table, bias) = one_row
    ours = predict(batch, hidden, Softmax(hidden, table, bias), 1.0, True)
    whole = predict(batch, hidden, Dense.softmax(hidden @ table.T + bias), 1.0, True)
    z = Given(torch.randn(3, 2, 20), None, table)
    torch.testing.assert_close(tuple(ours)[1:], tuple(whole)[1:], rtol=1e-4, atol=1e-5)
    changes: list[Callable[[Distribution], Distribution]] = [
        lambda p: p,
        lambda p: p.times_estimated_loss(z, ours.original_BK),
        lambda p: p.times_estimated_loss(z, ours.original_BK).tempered(2.0),
        lambda p: p.without(ours.original_BK),
        lambda p: p.mixed(whole.p, 0.5),
    ]
    for change in changes:
        drawn, expected = draw_from(change(ours.p), ours, uniforms), draw_from(change(whole.p), whole, uniforms)
        assert torch.equal(drawn.tokens_BK, expected.tokens_BK)
        for name, value in expected._asdict().items():
            if value is not None:
                torch.testing.assert_close(getattr(drawn, name), value, rtol=1e-4, atol=1e-5)


def test_scores_that_are_not_finite_draw_a_valid_token_with_probability_nan(
    one_row: tuple[Batch, Tensor, list[Tensor]],
) -> None:
    batch, uniforms, (hidden, table, bias) = one_row
    for wrong in (float("nan"), float("inf")):
        spoiled = hidden.detach().clone()
        spoiled[1, 0, 3] = wrong
        prediction = predict(batch, spoiled, Softmax(spoiled, table, bias), 1.0)
        drawn = draw_from(prediction.p, prediction, uniforms)
        assert ((drawn.tokens_BK >= 0) & (drawn.tokens_BK < 300)).all()
        assert drawn.log_q_BK.isnan().tolist() == [[False, False], [True, False], [False, False]]
        assert prediction.log_p_original_BK.isnan().sum() == 1
