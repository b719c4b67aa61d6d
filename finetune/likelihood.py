"""The likelihood of tokens and proposals for them, in closed form from a discriminator, a generator and its sampler.

Of m, the share of masked positions, q_o and q_r, the probabilities that the sampler draws x where x or another token is
the original, and the discriminator's logit d,

    P(x is shown and original) = p(x) (1 - m + m q_o),   P(x is shown and replaced) = (1 - p(x)) m q_r,

and exp(d) is the second over the first, so the probability of x given the other tokens is
p(x) = m q_r e^-d / (1 - m + m q_o + m q_r e^-d). For small q its log is Electric's score, log q - d + log m/(1 - m)
(Clark et al., EMNLP 2020).

Shape letters: V vocabulary, X any leading dimensions.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.huggingface.stored import Sampling

P_G = "electra"
"""The objective whose replacements are drawn from p_G."""


class Draws(NamedTuple):
    """Log-probabilities of the shown tokens x, [X], at masked positions."""

    log_p_G_X: Tensor
    log_q_original_X: Tensor
    """log q(x) where x is the original."""
    log_q_replacement_X: Tensor
    """log q(x) where another token is, on average over p_G."""


def log_likelihood(d_X: Tensor, draws: Draws, mask_share: float) -> Tensor:
    """Returns log p(x) of the shown tokens, [X]; it is finite for every finite d and log q."""
    log_replaced_X = math.log(mask_share) + draws.log_q_replacement_X - d_X
    return F.logsigmoid(log_replaced_X - torch.log1p(mask_share * draws.log_q_original_X.expm1()))


def draws_of(log_p_G_XV: Tensor, ids_X: Tensor, sampling: Sampling, head_XV: Tensor | None = None) -> Draws:
    """Returns the probabilities of the tokens `ids` under a sampler with these scores of its sampling head, if any.

    Where x is drawn in proportion to a weight that depends on whether it is the original (HP_Loss; `forbid_original`),
    q(x) also depends on the unknown original y, through the sum of the weights; we average over y != x by p_G, which
    is exact if p_G is.
    """
    x_X1 = ids_X[..., None]
    log_p_G_X = log_p_G_XV.gather(-1, x_X1)[..., 0]
    from_p_G = head_XV is None and sampling.temperature == 1 and not sampling.forbid_original
    if from_p_G or sampling.importance_weighting:  # weights p_G / q teach what draws from p_G would
        return Draws(log_p_G_X, log_p_G_X, log_p_G_X)
    weight_XV, original_XV = log_weights(log_p_G_XV, sampling, head_XV)
    if original_XV is None:
        log_q_X = weight_XV.gather(-1, x_X1)[..., 0] - weight_XV.logsumexp(-1)
        return Draws(log_p_G_X, log_q_X, log_q_X)
    total_XV = torch.logaddexp(log_sum_of_others(weight_XV), original_XV)  # by the original
    terms = (log_p_G_XV - total_XV, log_p_G_XV)
    of_others_X, p_others_X = (term_XV.scatter(-1, x_X1, -torch.inf).logsumexp(-1) for term_XV in terms)
    log_q_original_X = (original_XV - total_XV).gather(-1, x_X1)[..., 0]
    return Draws(log_p_G_X, log_q_original_X, weight_XV.gather(-1, x_X1)[..., 0] + of_others_X - p_others_X)


def log_weights(log_p_G_XV: Tensor, sampling: Sampling, head_XV: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns the logs of what replacements are drawn in proportion to, and of the original's weight if it has its own,
    both [X, V].
    """
    weight_XV = log_p_G_XV / sampling.temperature
    original_XV = None
    if head_XV is not None and sampling.objective == "hp_loss":
        original_XV = weight_XV + F.softplus(-head_XV).log()
        weight_XV = weight_XV + F.softplus(head_XV).log()
    elif head_XV is not None:
        p_S_XV = (head_XV / sampling.temperature).softmax(-1)
        weight_XV = (p_S_XV + sampling.mixture * (log_p_G_XV.exp() - p_S_XV)).log()
    if sampling.forbid_original:
        original_XV = torch.full_like(weight_XV, -torch.inf)
    return weight_XV, original_XV


def log_sum_of_others(log_XV: Tensor) -> Tensor:
    """Returns log sum_{v != x} exp(log_v) for every x, [X, V], without cancellation."""
    top_X1, total_X1 = log_XV.argmax(-1, keepdim=True), log_XV.logsumexp(-1, keepdim=True)
    without_top_X1 = log_XV.scatter(-1, top_X1, -torch.inf).logsumexp(-1, keepdim=True)
    return (total_X1 + torch.log1p(-(log_XV - total_X1).exp())).scatter(-1, top_X1, without_top_X1)


class Proposal(NamedTuple):
    """Values that the models give every token in place of a masked one, each [V]."""

    p_G_V: Tensor
    p_S_V: Tensor | None
    """The probability of being drawn where the masked token is the original; `None` without a sampling head."""
    estimated_loss_V: Tensor | None
    """The discriminator's loss as HP_Loss's sampling head estimates it."""


def proposal_of(
    log_p_G_V: Tensor, original: Tensor, sampling: Sampling | None, head_V: Tensor | None = None
) -> Proposal:
    """Returns the proposals in place of the masked token `original`, given the scores of a sampling head, if any."""
    if head_V is None or sampling is None:
        return Proposal(log_p_G_V.exp(), None, None)
    weight_V, original_V = log_weights(log_p_G_V, sampling, head_V)
    if original_V is not None:
        weight_V[original] = original_V[original]
    estimates = sampling.objective == "hp_loss"
    loss_V = F.softplus(head_V.index_put((original,), -head_V[original])) if estimates else None
    return Proposal(log_p_G_V.exp(), weight_V.softmax(-1), loss_V)
