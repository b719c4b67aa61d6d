"""Prediction, draw and replaced sequence: pure functions around a `Distribution` over the vocabulary.

Sampling carries no gradient: the paper does not differentiate through it (section 3.2). Shape letters: B batch,
L length, K masked positions per sequence.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.data.batches import Batch
from pretrain.method.losses import Gamma, focal_loss
from pretrain.model.distribution import Distribution, in_any_order


class Prediction(NamedTuple):
    """A masked language model's predictions at the masked positions."""

    p: Distribution
    """p_G at every masked position [B, K]."""
    hidden_BKH: Tensor
    """The model's hidden states, from which a sampling head predicts."""
    original_BK: Tensor
    """Original ids."""
    log_p_original_BK: Tensor
    """Log-probability of the original ids, differentiable."""
    loss_BK: Tensor
    """L_G."""
    entropy_BK: Tensor | None
    """Entropy in nats, if requested; it costs a pass over the vocabulary."""


class Draw(NamedTuple):
    """Sampled replacements for the masked positions with their probabilities; nothing here has a gradient."""

    tokens_BK: Tensor
    """Sampled ids x'."""
    log_p_G_BK: Tensor
    """log p_G(x')."""
    log_q_BK: Tensor
    """Log-probability of x' under the distribution it was drawn from."""
    log_max_q_BK: Tensor
    """Log-probability of the most likely token under the distribution x' was drawn from."""
    entropy_q_BK: Tensor | None
    """Entropy of the distribution x' was drawn from, in nats, if entropies were requested."""
    estimated_loss_BK: Tensor | None = None
    """L_hat(x'), if the sampling head estimates the discriminator's loss."""

    @property
    def log_ratio_BK(self) -> Tensor:
        """Log of p_G(x') over the probability that x' was drawn with."""
        return self.log_p_G_BK - self.log_q_BK


def predict(
    batch: Batch, hidden_BKH: Tensor, p: Distribution, gamma: Gamma | None, entropies: bool = False
) -> Prediction:
    """Returns the prediction that a distribution makes at the masked positions; L_G is 0 if gamma is `None`."""
    original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    log_p_BK = p.log_p(original_BK)
    loss_BK = torch.zeros_like(log_p_BK) if gamma is None else focal_loss(log_p_BK, gamma)
    return Prediction(p.detach(), hidden_BKH, original_BK, log_p_BK, loss_BK, p.entropy() if entropies else None)


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
        log_max_q_BK=q.log_largest_X,
        entropy_q_BK=None if prediction.entropy_BK is None else q.entropy(),
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
    """Gathers the states [B, L, H] at the masked positions [B, K].

    Valid positions are distinct, and the gradients of unused slots are zero, so the backward may add in any order.
    """

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
