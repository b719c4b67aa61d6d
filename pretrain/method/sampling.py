"""Pure functions on distributions over the vocabulary: prediction, p_S, drawing tokens, building the replaced sequence.

Everything runs in fp32 or wider. Sampling carries no gradient: the paper does not differentiate through it (section
3.2). A distribution is represented by weights, that is, unnormalized probabilities; the largest weight of each row must
be a normal number (not subnormal).

Shape letters: X any leading dimensions, V vocabulary, B batch, L length, K masked positions per sequence, N blocks per
row, S tokens per block, C candidates. Tensors [X, V] are the largest of a step, so each is made once and updated in
place.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.data.batches import Batch

LEAST_LOSS = 1e-30
"""Lower bound on L_hat: times the largest p_G (at least 1/V) it is still a normal fp32 number. It changes p_S only if
the estimated loss of every token that p_G finds likely is below it."""
ENTROPY_ROWS = 64
"""Rows per entropy computation: 8 MB of fp32 with 30,522 tokens; a whole micro-batch would take hundreds of MB."""
BLOCK = 128  # near the square root of 30,522 tokens; sizes from 64 to 512 take the same time


class Prediction(NamedTuple):
    """A masked language model's predictions at the masked positions."""

    p_BKV: Any
    """Probability of every token, without gradient: a tensor, or a `Softmax` that never holds all (`ops.softmax`)."""
    log_p_original_BK: Tensor
    """Log-probability of the original tokens, differentiable."""
    original_BK: Tensor
    """Original ids."""
    top_BK: Tensor
    """Most likely ids."""
    entropy_BK: Tensor | None = None
    """Entropy in nats, if requested; it costs a pass over the vocabulary."""


class Draw(NamedTuple):
    """Sampled replacements for the masked positions, with their probabilities; only `head_BK` carries a gradient."""

    tokens_BK: Tensor
    """Sampled ids x'."""
    log_p_G_BK: Tensor
    """log p_G(x')."""
    log_q_BK: Tensor
    """Log-probability of x' under the distribution it was drawn from."""
    log_max_p_G_BK: Tensor
    """log p_G of the generator's most likely token."""
    log_max_q_BK: Tensor
    """The largest log-probability of the distribution x' was drawn from."""
    entropy_p_G_BK: Tensor | None
    """Entropy of p_G in nats, if requested."""
    entropy_q_BK: Tensor | None
    """Entropy of the distribution x' was drawn from, in nats, if requested."""
    head_BK: Tensor | None = None
    """The sampling head's output for x', needed by its loss L_S; differentiable, removed at the end of the forward."""
    estimated_loss_BK: Tensor | None = None
    """L_hat(x'), if the sampling head estimates the discriminator's loss."""
    offset_BKE: Tensor | None = None
    """Added to the discriminator's word embeddings of x': 0, but with a gradient; removed as `head_BK`."""

    @property
    def log_ratio_BK(self) -> Tensor:
        """Log of p_G(x') over the probability that x' was drawn with."""
        return self.log_p_G_BK - self.log_q_BK


def predict(batch: Batch, logits_BKV: Any, with_entropy: bool = False) -> Prediction:
    """Computes the generator's prediction from its logits, or from their `Softmax`."""
    original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    if not isinstance(logits_BKV, Tensor):
        p = logits_BKV
        return Prediction(p, p.log_p(original_BK), original_BK, p.top_X, p.entropy_X if with_entropy else None)
    p_BKV, top_BK = logits_BKV.detach().softmax(-1), largest(logits_BKV)
    return Prediction(
        p_BKV=p_BKV,
        log_p_original_BK=log_probability(logits_BKV, p_BKV, original_BK, top_BK),
        original_BK=original_BK,
        top_BK=top_BK,
        entropy_BK=entropy(p_BKV) if with_entropy else None,
    )


@torch.no_grad()
def draw_from(weights_BKV: Any, prediction: Prediction, uniforms_BK: Tensor, forbid_original: bool = False) -> Draw:
    """Draws one token per position with probability proportional to its weight, by inverse CDF. The weights are a
    tensor, or in blocks, as those of a `Softmax`.

    If weights are not finite, an arbitrary valid token is drawn with probability NaN: the error then shows as a
    non-finite loss, not as an index out of range.
    """
    entropy_BK = None
    if isinstance(weights_BKV, Tensor):
        if forbid_original:
            weights_BKV = without_original(weights_BKV, prediction.original_BK)
        tokens_BK, total_BK = inverse_cdf(weights_BKV, uniforms_BK)
        weight_BK = weights_BKV.gather(-1, tokens_BK[..., None]).squeeze(-1)
        largest_BK = weights_BKV.amax(-1)
        if prediction.entropy_BK is not None:
            entropy_BK = entropy(weights_BKV)
    else:
        weights = weights_BKV
        tokens_BK, total_BK, weight_BK = draw_in_blocks(weights.sum_XN, weights.block, weights.size, uniforms_BK)
        largest_BK = weights.largest_X
        if prediction.entropy_BK is not None:
            entropy_BK = weights.entropy_X
    total_BK = total_BK + 0 * total_BK  # infinity becomes NaN
    return Draw(
        tokens_BK=tokens_BK,
        log_p_G_BK=log_at(prediction.p_BKV, tokens_BK),
        log_q_BK=(weight_BK / total_BK).log(),
        log_max_p_G_BK=log_at(prediction.p_BKV, prediction.top_BK),
        log_max_q_BK=(largest_BK / total_BK).log(),
        entropy_p_G_BK=prediction.entropy_BK,
        entropy_q_BK=entropy_BK,
    )


@torch.no_grad()
def hp_loss_weights(
    p_G_XV: Tensor, z_XV: Tensor, original_X: Tensor, exponent: float = 1.0, least: float = LEAST_LOSS
) -> Tensor:
    """Returns HP_Loss's sampling weights p_G L_hat^exponent, [X, V], with L_hat at least `least`; `p_G` may be
    tempered. Overwrites `z`.

    With D_hat = sigmoid(z), L_hat is -log D_hat = softplus(-z) for the original token and -log(1 - D_hat) = softplus(z)
    for every other token (paper, equations of section 3.3).
    """
    original_X1 = original_X[..., None]
    of_original_X1 = F.softplus(-z_XV.gather(-1, original_X1))
    loss_XV = torch.ops.aten.softplus.out(z_XV, out=z_XV).scatter_(-1, original_X1, of_original_X1)
    loss_XV.clamp_(min=least)
    return (loss_XV if exponent == 1 else loss_XV.pow_(exponent)).mul_(p_G_XV)


@torch.no_grad()
def resample(candidates: Sequence[Draw], weights_BKC: Tensor, prediction: Prediction, uniforms_BK: Tensor) -> Draw:
    """Chooses one candidate per position with probability proportional to its weight (sampling-importance-resampling).

    The candidates were drawn from q; as their number grows, the choice follows q times the weight, normalized. The mean
    weight of the candidates estimates the normalizer. So log-probabilities are estimates, as are the largest one, over
    the candidates, and the entropy.
    """
    choice_BK, total_BK = inverse_cdf(weights_BKC, uniforms_BK)
    choice_BK1, total_BK1 = choice_BK[..., None], total_BK[..., None]
    tokens_BKC, log_p_G_BKC, log_q_BKC = (
        torch.stack(parts, -1)
        for parts in zip(*((one.tokens_BK, one.log_p_G_BK, one.log_q_BK) for one in candidates), strict=True)
    )
    log_q_BKC = log_q_BKC + weights_BKC.log() - (total_BK1 / len(candidates)).log()
    likely_BKC = log_q_BKC.clamp(max=0)  # an estimate may exceed 1
    return candidates[0]._replace(
        tokens_BK=tokens_BKC.gather(-1, choice_BK1).squeeze(-1),
        log_p_G_BK=log_p_G_BKC.gather(-1, choice_BK1).squeeze(-1),
        log_q_BK=log_q_BKC.gather(-1, choice_BK1).squeeze(-1),
        log_max_q_BK=likely_BKC.amax(-1),
        entropy_p_G_BK=prediction.entropy_BK,
        entropy_q_BK=None if prediction.entropy_BK is None else -(weights_BKC / total_BK1 * likely_BKC).sum(-1),
    )


@torch.no_grad()
def tempered(p_XV: Tensor, temperature: float) -> Tensor:
    """Returns weights proportional to p^(1/T): `p` itself for T = 1, else scaled so that each row's largest is 1."""
    return p_XV if temperature == 1 else (p_XV / p_XV.amax(-1, keepdim=True)).pow_(1 / temperature)


@torch.no_grad()
def without_original(weights_XV: Tensor, original_X: Tensor) -> Tensor:
    """Returns the weights with zero for the original token (google-research/electra `disallow_correct`).

    If all other tokens had weight zero, they become equally likely.
    """
    return weights_XV.clamp(min=torch.finfo(weights_XV.dtype).tiny).scatter_(-1, original_X[..., None], 0.0)


@torch.no_grad()
def importance_weights(log_ratio_BK: Tensor, batch: Batch) -> Tensor:
    """Returns p_G/p_S of the drawn tokens at the masked positions and 1 elsewhere, [B, L]."""
    excess_BK = torch.where(batch.masked_valid_BK, torch.expm1(log_ratio_BK), 0.0)
    ones_BL = torch.ones_like(batch.input_ids_BL, dtype=log_ratio_BK.dtype)
    with in_any_order():
        return ones_BL.scatter_add(1, batch.masked_positions_BK, excess_BK)


@torch.no_grad()
def replace(input_ids_BL: Tensor, positions_BK: Tensor, valid_BK: Tensor, tokens_BK: Tensor) -> Tensor:
    """Returns `input_ids` with `tokens` at the valid masked positions, [B, L]; invalid slots change nothing."""
    current_BK = input_ids_BL.gather(1, positions_BK)
    change_BK = torch.where(valid_BK, tokens_BK - current_BK, 0)
    with in_any_order():
        return input_ids_BL.scatter_add(1, positions_BK, change_BK)


def log_at(p_XV: Any, ids_X: Tensor) -> Tensor:
    """Returns the log-probability of one token per row, [X]; probabilities are at least the smallest normal number."""
    if not isinstance(p_XV, Tensor):
        return p_XV.log_p(ids_X).detach()
    p_X = p_XV.gather(-1, ids_X[..., None]).squeeze(-1)
    return p_X.clamp(min=torch.finfo(p_X.dtype).tiny).log()


def log_probability(logits_XV: Tensor, p_XV: Tensor, ids_X: Tensor, top_X: Tensor | None = None) -> Tensor:
    """Returns `logits.log_softmax(-1).gather(-1, ids)`, [X], with its gradient, but with less memory.

    `p` is the softmax of the logits, without gradient. `top` is the most likely token, if known: the result is computed
    relative to it, since its probability cannot round to zero. The backward makes one tensor [X, V]; autograd's, three.
    """
    return _LogProbability.apply(logits_XV, p_XV, largest(logits_XV) if top_X is None else top_X, ids_X)


class _LogProbability(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_XV: Tensor, p_XV: Tensor, top_X: Tensor, ids_X: Tensor) -> Tensor:
        ctx.save_for_backward(p_XV, ids_X)
        top_X1, ids_X1 = top_X[..., None], ids_X[..., None]
        below_top_X1 = logits_XV.gather(-1, ids_X1) - logits_XV.gather(-1, top_X1)
        return (below_top_X1 + p_XV.gather(-1, top_X1).log()).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_X: Tensor) -> tuple[Tensor, None, None, None]:
        """Returns (one_hot(ids) - p) times the incoming gradient."""
        p_XV, ids_X = ctx.saved_tensors
        gradient_X1 = gradient_X[..., None]
        with in_any_order():
            gradient_XV = (p_XV * -gradient_X1).scatter_add_(-1, ids_X[..., None], gradient_X1)
        return gradient_XV, None, None, None


@torch.no_grad()
def entropy(weights_XV: Tensor) -> Tensor:
    """Returns the entropy in nats of the distribution proportional to the weights, [X]; takes a few rows at a time."""
    entropies = []
    for weights_RV in weights_XV.flatten(0, -2).split(ENTROPY_ROWS):
        p_RV = weights_RV / weights_RV.sum(-1, keepdim=True)
        entropies.append(-torch.xlogy(p_RV, p_RV).sum(-1))  # 0 log 0 is 0
    return torch.cat(entropies).view(weights_XV.shape[:-1])


@torch.no_grad()
def largest(values_XV: Tensor) -> Tensor:
    """Returns the index of each row's largest value, the first if there are several, [X]; 3 times as fast as `argmax`
    on a CPU.
    """
    block_X1 = _by_block(torch.amax, values_XV).argmax(-1, keepdim=True)
    place_X1 = _block(values_XV, block_X1, fill=-torch.inf).argmax(-1, keepdim=True)
    return (block_X1 * BLOCK + place_X1).squeeze(-1)


@torch.no_grad()
def inverse_cdf(weights_XV: Tensor, uniform_X: Tensor) -> tuple[Tensor, Tensor]:
    """Samples by inverse CDF: returns the first token at which a row's cumulative sum exceeds `uniform` times its
    total, and the totals. Both [X].

    `uniform` is in [0, 1) with at most 24 bits, so the sought value stays below the total, and a token of weight zero,
    where the sum does not grow, is never drawn. With weights that are not finite, the token is arbitrary but valid.
    """
    block = partial(_block, weights_XV, fill=0.0)
    tokens_X, total_X, _ = draw_in_blocks(_by_block(torch.sum, weights_XV), block, weights_XV.shape[-1], uniform_X)
    return tokens_X, total_X


@torch.no_grad()
def draw_in_blocks(
    sum_XN: Tensor, block: Callable[[Tensor], Tensor], size: int, uniform_X: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `inverse_cdf` of `size` tokens from the sums of their blocks and `block`, which returns the weights of
    one block of each row, [X, S], from its number, [X, 1]. Also returns the weights of the drawn tokens.
    """
    cdf_XN = _cumulative_sum(sum_XN)
    total_X1 = cdf_XN[..., -1:]
    sought_X1 = uniform_X[..., None] * total_X1
    block_X1 = torch.searchsorted(cdf_XN, sought_X1, right=True).clamp_(max=cdf_XN.shape[-1] - 1)
    sought_X1 = sought_X1 - F.pad(cdf_XN, (1, 0)).gather(-1, block_X1)
    weights_XS = block(block_X1)
    cdf_XS = _cumulative_sum(weights_XS)
    end_X1 = cdf_XS[..., -1:]  # the block's sum, with another rounding: the sought value must stay below it
    sought_X1 = sought_X1.minimum(end_X1.nextafter(torch.zeros_like(end_X1)))
    place_X1 = torch.searchsorted(cdf_XS, sought_X1, right=True)
    token_X1 = (block_X1 * BLOCK + place_X1).clamp_(max=size - 1)
    weight_X1 = weights_XS.gather(-1, place_X1.clamp(max=BLOCK - 1))
    return token_X1.squeeze(-1), total_X1.squeeze(-1), weight_X1.squeeze(-1)


def _cumulative_sum(values_XN: Tensor) -> Tensor:
    """Returns each row's cumulative sum, also under deterministic algorithms.

    With these PyTorch refuses every floating-point `cumsum` on a GPU, though it varies only where a single row takes
    several thread blocks (ATen/native/cuda/ScanUtils.cuh); a row here has a few hundred values.
    """
    with in_any_order():
        return values_XN.cumsum(-1)


@contextmanager
def in_any_order() -> Iterator[None]:
    """Lifts deterministic algorithms for sums that are the same in any order: of integers, or of one value each.

    For `scatter_add` they take a sort and thirty kernels on a GPU.
    """
    strict = torch.are_deterministic_algorithms_enabled()
    if strict:
        torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        if strict:
            torch.use_deterministic_algorithms(True)


class AtPositions(torch.autograd.Function):
    """Takes the states [..., B, L, H] at the masked positions [B, K], which differ except where gradients are zero."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, positions_BK: Tensor) -> Tensor:
        index_BKH = positions_BK[..., None].expand(-1, -1, states.shape[-1])
        ctx.index, ctx.shape = index_BKH.expand(*states.shape[:-3], -1, -1, -1), states.shape
        return states.gather(-2, ctx.index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with in_any_order():
            return gradient.new_zeros(ctx.shape).scatter_add_(-2, ctx.index, gradient), None


def _by_block(reduce: Callable[..., Tensor], values_XV: Tensor) -> Tensor:
    """Applies `reduce` to each block of a row, [X, N]; the last block may be shorter."""
    whole = values_XV.shape[-1] // BLOCK
    reduced_XN = reduce(values_XV[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK)), -1)
    rest_XS = values_XV[..., whole * BLOCK :]
    return torch.cat((reduced_XN, reduce(rest_XS, -1, keepdim=True)), -1) if rest_XS.shape[-1] else reduced_XN


def _block(values_XV: Tensor, block_X1: Tensor, fill: float) -> Tensor:
    """Returns one block of each row, [X, S], with `fill` beyond the end of the row."""
    ids_XS = block_X1 * BLOCK + torch.arange(BLOCK, device=block_X1.device)
    vocabulary = values_XV.shape[-1]
    return values_XV.gather(-1, ids_XS.clamp(max=vocabulary - 1)).masked_fill_(ids_XS >= vocabulary, fill)
