"""Replacement sampling as pure functions: the distribution p_S, the draw, and the replaced sequence.

Everything here runs in fp32 or wider and carries no gradient: sampling is not differentiated (paper section 3.2).
A distribution is given by weights: probabilities up to a factor, of which a row's largest is a normal number.
Shape letters: X any leading dimensions, V vocabulary, B batch, L length, K masked positions a sequence.
A tensor [X, V] is the largest of a step: each is made once and worked on in place.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.vocabulary import inverse_cdf

LEAST_LOSS = 1e-30
"""Under L_hat: times the largest p_G, at least 1/V, it is still a normal number of fp32. It changes p_S where all that
p_G holds likely is estimated to cost the discriminator less than that."""
UNIFORM_BITS = 24
"""Of a uniform (`ordering.uniforms`), all exact in fp32; the lowest is always set."""
ENTROPY_ROWS = 64
"""Rows whose entropy is taken at once: 8 MB of fp32 with 30,522 tokens, where a whole micro-batch has hundreds."""
GOLDEN_24 = 0x9E3779  # 2^24 over the golden ratio, odd: multiples of it modulo 2^24 spread most evenly


@torch.no_grad()
def hp_loss_weights(p_G_XV: Tensor, z_XV: Tensor, original_X: Tensor, temperature: float = 1.0) -> Tensor:
    """HP_Loss: p_G^(1/T) L_hat, [X, V]; made in place of z.

    L_hat = -log D_hat = softplus(-z) for the original token and -log(1 - D_hat) = softplus(z) for every other
    (paper, equations of section 3.3), with D_hat = sigmoid(z).
    """
    original_X1 = original_X[..., None]
    of_original_X1 = F.softplus(-z_XV.gather(-1, original_X1))
    loss_XV = torch.ops.aten.softplus.out(z_XV, out=z_XV).scatter_(-1, original_X1, of_original_X1)
    return loss_XV.clamp_(min=LEAST_LOSS).mul_(tempered(p_G_XV, temperature))


@torch.no_grad()
def tempered(p_XV: Tensor, temperature: float) -> Tensor:
    """Weights of p^(1/T); the largest is 1 where T is not."""
    return p_XV if temperature == 1 else (p_XV / p_XV.amax(-1, keepdim=True)).pow_(1 / temperature)


@torch.no_grad()
def without_original(weights_XV: Tensor, original_X: Tensor) -> Tensor:
    """The same weights but zero for the original token (google-research/electra `disallow_correct`).

    Beside an original that leaves the others no weight at all, they are equally likely.
    """
    return weights_XV.clamp(min=torch.finfo(weights_XV.dtype).tiny).scatter_(-1, original_X[..., None], 0.0)


@torch.no_grad()
def mixture(p_S_XV: Tensor, p_G_XV: Tensor, share: float) -> Tensor:
    """(1 - share) p_S + share p_G; both normalized, and so is the result."""
    return p_S_XV.lerp(p_G_XV, share)


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
def sample(weights_XV: Tensor, uniform_X: Tensor) -> Sampled:
    """Draws one token a row in proportion to its weight by inverse CDF; `uniform` as `inverse_cdf` wants it.

    Of weights that are not finite some token is drawn, with probability NaN: the loss shall say it, not an index beyond
    the vocabulary.
    """
    tokens_X, total_X = inverse_cdf(weights_XV, uniform_X)
    total_X = total_X + 0 * total_X  # infinity becomes NaN
    weight_X = weights_XV.gather(-1, tokens_X[..., None]).squeeze(-1)
    return Sampled(tokens_X, (weight_X / total_X).log(), (weights_XV.amax(-1) / total_X).log())


@torch.no_grad()
def entropy(weights_XV: Tensor) -> Tensor:
    """Of the distribution in proportion to the weights, in nats [X]; a few rows at a time."""
    rows = [_row_entropy(part_RV) for part_RV in weights_XV.flatten(0, -2).split(ENTROPY_ROWS)]
    return torch.cat(rows).view(weights_XV.shape[:-1])


def _row_entropy(weights_RV: Tensor) -> Tensor:
    p_RV = weights_RV / weights_RV.sum(-1, keepdim=True)
    return -torch.xlogy(p_RV, p_RV).sum(-1)  # 0 log 0 is 0


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
