"""Replacement sampling as pure functions: the distribution p_S, the draw, and the replaced sequence.

Everything here runs in fp32 or wider and carries no gradient: sampling is not differentiated (paper section 3.2).
Shape letters: X any leading dimensions, V vocabulary, B batch, L length, K masked positions a sequence.
A tensor [X, V] is the largest of a step: each is made once and worked on in place.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.data import Batch

SOFTPLUS_IS_EXP_BELOW = -15.0  # there softplus(z) = log(1 + e^z) = e^z to fp32 precision, so its logarithm is z

UNIFORM_BITS = 24
"""Of a uniform (`ordering.uniforms`), all exact in fp32; the lowest is always set."""
ENTROPY_ROWS = 64
"""Rows whose entropy is taken at once: 8 MB of fp32 with 30,522 tokens, where a whole micro-batch has hundreds."""
GOLDEN_24 = 0x9E3779  # 2^24 over the golden ratio, odd: multiples of it modulo 2^24 spread most evenly


@torch.no_grad()
def log_softplus(z: Tensor) -> Tensor:
    """log(log(1 + e^z)), finite wherever z is."""
    result = F.softplus(z).log_()
    return torch.where(z < SOFTPLUS_IS_EXP_BELOW, z, result, out=result)


@torch.no_grad()
def hp_loss_log_weights(log_p_G_XV: Tensor, z_XV: Tensor, original_X: Tensor, temperature: float = 1.0) -> Tensor:
    """HP_Loss: log of p_G^(1/T) L_hat up to a constant, [X, V].

    L_hat = -log D_hat = softplus(-z) for the original token and -log(1 - D_hat) = softplus(z) for every other
    (paper, equations of section 3.3), with D_hat = sigmoid(z).
    """
    original_X1 = original_X[..., None]
    log_loss_XV = log_softplus(z_XV).scatter_(-1, original_X1, log_softplus(-z_XV.gather(-1, original_X1)))
    return log_loss_XV.add_(tempered(log_p_G_XV, temperature))


@torch.no_grad()
def tempered(log_p_XV: Tensor, temperature: float) -> Tensor:
    """Log of p^(1/T) up to a constant."""
    return log_p_XV if temperature == 1 else log_p_XV / temperature


@torch.no_grad()
def without_original(log_weights_XV: Tensor, original_X: Tensor) -> Tensor:
    """The same weights but zero for the original token (google-research/electra `disallow_correct`)."""
    return log_weights_XV.scatter(-1, original_X[..., None], -math.inf)


@torch.no_grad()
def mixture(log_p_S_XV: Tensor, log_p_G_XV: Tensor, share: float) -> Tensor:
    """Log of (1 - share) p_S + share p_G; both normalized, and so is the result."""
    return torch.logaddexp(log_p_S_XV + math.log1p(-share), log_p_G_XV + math.log(share))


class Sampled(NamedTuple):
    """Tokens and what they were drawn from."""

    tokens_X: Tensor
    log_probability_X: Tensor
    """Of each token, the weights normalized."""
    log_largest_X: Tensor
    """Of the most likely token."""
    entropy_X: Tensor | None = None
    """Where it was asked for."""


@torch.no_grad()
def sample(log_weights_XV: Tensor, uniform_X: Tensor) -> Sampled:
    """Draws one token a row in proportion to exp(log_weights) by inverse CDF.

    `uniform_X` lies in [0, 1) with at most 24 bits, so the target stays below the total and a token of weight zero,
    whose step in the CDF is empty, is never drawn. Of weights that are NaN the last token is, with probability NaN: the
    loss shall say it, not an index beyond the vocabulary.
    """
    largest_X1 = log_weights_XV.amax(-1, keepdim=True)
    cdf_XV = (log_weights_XV - largest_X1).exp_().cumsum_(-1)
    total_X1 = cdf_XV[..., -1:]
    token_X1 = torch.searchsorted(cdf_XV, uniform_X[..., None] * total_X1, right=True)
    token_X1.clamp_(max=log_weights_XV.shape[-1] - 1)
    log_probability_X1 = log_weights_XV.gather(-1, token_X1) - largest_X1 - total_X1.log()
    return Sampled(token_X1.squeeze(-1), log_probability_X1.squeeze(-1), -total_X1.log().squeeze(-1))


@torch.no_grad()
def entropy(log_weights_XV: Tensor) -> Tensor:
    """Of the distribution in proportion to exp(log_weights), in nats [X]; a few rows at a time."""
    rows = [_row_entropy(part_RV) for part_RV in log_weights_XV.flatten(0, -2).split(ENTROPY_ROWS)]
    return torch.cat(rows).view(log_weights_XV.shape[:-1])


def _row_entropy(log_weights_RV: Tensor) -> Tensor:
    log_p_RV = log_weights_RV.log_softmax(-1).clamp_(min=torch.finfo(log_weights_RV.dtype).min)  # 0 log 0 is 0
    return -torch.linalg.vecdot(log_p_RV.exp(), log_p_RV)


@torch.no_grad()
def keeps_token(uniform_X: Tensor, fraction: float) -> Tensor:
    """Which masked positions keep their token as the generator's input; from the uniform that also draws x'.

    Multiplied by the golden ratio, its bits are in (0, fraction) for that share of all uniforms, spread so evenly that
    among the kept positions, as among the others, x' follows p_S.
    """
    bits_X = (uniform_X.double() * 2**UNIFORM_BITS).long()
    return (bits_X * GOLDEN_24) % 2**UNIFORM_BITS < fraction * 2**UNIFORM_BITS


@torch.no_grad()
def replace(input_ids_BL: Tensor, positions_BK: Tensor, valid_BK: Tensor, tokens_BK: Tensor) -> Tensor:
    """`input_ids` with `tokens` at the valid masked positions, [B, L]; slots that are not valid change nothing."""
    current_BK = input_ids_BL.gather(1, positions_BK)
    change_BK = torch.where(valid_BK, tokens_BK - current_BK, 0)
    return input_ids_BL.scatter_add(1, positions_BK, change_BK)


@torch.no_grad()
def importance_weights(log_ratio_BK: Tensor, batch: Batch) -> Tensor:
    """p_G/p_S at the masked positions and 1 elsewhere, [B, L]."""
    excess_BK = torch.where(batch.masked_valid_BK, torch.expm1(log_ratio_BK), 0.0)
    ones_BL = torch.ones_like(batch.input_ids_BL, dtype=log_ratio_BK.dtype)
    return ones_BL.scatter_add(1, batch.masked_positions_BK, excess_BK)
