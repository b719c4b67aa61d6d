"""Prediction, draw and replaced sequence: pure functions around a `Distribution` over the vocabulary.

Sampling carries no gradient: the paper does not differentiate through it (section 3.2). Shape letters: B batch,
L length, K masked positions per sequence, C candidates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.data.batches import Batch
from pretrain.model.distribution import Distribution, in_any_order, inverse_cdf


class Prediction(NamedTuple):
    """A masked language model's predictions at the masked positions."""

    p: Distribution
    """p_G at every masked position [B, K]."""
    log_p_original_BK: Tensor
    """Log-probability of the original tokens, differentiable."""
    original_BK: Tensor
    """Original ids."""
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

    @property
    def log_ratio_BK(self) -> Tensor:
        """Log of p_G(x') over the probability that x' was drawn with."""
        return self.log_p_G_BK - self.log_q_BK


def predict(batch: Batch, p: Distribution, with_entropy: bool = False) -> Prediction:
    """Returns the prediction that a distribution makes at the masked positions."""
    original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    log_p_original_BK = p.log_p(original_BK)
    return Prediction(p.detach(), log_p_original_BK, original_BK, p.entropy() if with_entropy else None)


@torch.no_grad()
def draw_from(q: Distribution, prediction: Prediction, uniforms_BK: Tensor, forbid_original: bool = False) -> Draw:
    """Draws one token per position from q, by inverse CDF."""
    if forbid_original:
        q = q.without(prediction.original_BK)
    tokens_BK, log_q_BK = q.draw(uniforms_BK)
    return Draw(
        tokens_BK=tokens_BK,
        log_p_G_BK=prediction.p.log_at(tokens_BK),
        log_q_BK=log_q_BK,
        log_max_p_G_BK=prediction.p.log_largest_X,
        log_max_q_BK=q.log_largest_X,
        entropy_p_G_BK=prediction.entropy_BK,
        entropy_q_BK=None if prediction.entropy_BK is None else q.entropy(),
    )


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


class AtPositions(torch.autograd.Function):
    """Takes the states [B, L, H] at the masked positions [B, K], which differ except where gradients are zero."""

    @staticmethod
    def forward(ctx: Any, states_BLH: Tensor, positions_BK: Tensor) -> Tensor:
        ctx.index_BKH = positions_BK[..., None].expand(-1, -1, states_BLH.shape[-1])
        ctx.shape = states_BLH.shape
        return states_BLH.gather(1, ctx.index_BKH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BKH: Tensor) -> tuple[Tensor, None]:
        with in_any_order():
            return gradient_BKH.new_zeros(ctx.shape).scatter_add_(1, ctx.index_BKH, gradient_BKH), None
