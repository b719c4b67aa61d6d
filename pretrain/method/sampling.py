"""Where the replacements x' come from: p_G itself (ELECTRA), p_G reweighed by the estimated loss (HP_Loss), or the
sampling head's own distribution (HP_Dist).

Shape letters: B batch, K masked positions a sequence, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pretrain.method.losses import log_probability
from pretrain.method.masked_lm import Prediction, log_at
from pretrain.method.objectives import ObjectiveConfig
from pretrain.method.replacement import Sampled, entropy, hp_loss_weights, mixture, sample, tempered, without_original
from pretrain.method.vocabulary import largest

Scores = Callable[[Tensor | None], Tensor]
"""The sampling head's logits: of every token [B, K, V], or of the given ids alone [B, K]."""


class Draw(NamedTuple):
    """Replacements of the masked positions and what was believed of them."""

    tokens_BK: Tensor
    """Sampled ids x'."""
    log_p_G_BK: Tensor
    """log p_G(x'), without gradient."""
    log_q_BK: Tensor
    """Log-probability of x' under the distribution it was drawn from, without gradient."""
    log_max_p_G_BK: Tensor
    """log p_G of the generator's most likely token."""
    log_max_q_BK: Tensor
    """The largest log-probability of the distribution x' was drawn from."""
    entropy_p_G_BK: Tensor | None
    """In nats, where the prediction was asked for it."""
    entropy_q_BK: Tensor | None
    """The same of the distribution x' was drawn from."""
    log_p_S_BK: Tensor | None = None
    """log p_S(x'), HP_Dist alone; differentiable inside the forward."""
    z_BK: Tensor | None = None
    """The sampling head's logit of x', HP_Loss alone: D_hat = sigmoid(z); differentiable inside the forward."""

    @property
    def log_ratio_BK(self) -> Tensor:
        """Log of p_G over the distribution x' was drawn from, at x'."""
        return self.log_p_G_BK - self.log_q_BK

    def detach(self) -> "Draw":
        """The same numbers without their gradient."""
        return Draw._make(None if part is None else part.detach() for part in self)


def draw(prediction: Prediction, scores: Scores | None, uniforms_BK: Tensor, objective: ObjectiveConfig) -> Draw:
    """Samples as the objective says; `scores` is `None` where it learns no sampling."""
    if scores is None:
        return draw_from_generator(prediction, None, uniforms_BK, objective)
    learned = {"hp_loss": draw_by_estimated_loss, "hp_dist": draw_from_head}
    return learned[objective.name](prediction, scores, uniforms_BK, objective)


def draw_from_generator(
    prediction: Prediction, scores: Scores | None, uniforms_BK: Tensor, objective: ObjectiveConfig
) -> Draw:
    """ELECTRA: x' from p_G; with `scores`, what HP_Loss's head estimates of it comes along."""
    weights_BKV = tempered(prediction.p_BKV, objective.temperature)
    sampled = _sample(weights_BKV, prediction, uniforms_BK, objective)
    z_BK = scores(sampled.tokens_X) if scores is not None and objective.name == "hp_loss" else None
    return _draw(prediction, sampled, z_BK=z_BK)


def draw_by_estimated_loss(
    prediction: Prediction, scores: Scores, uniforms_BK: Tensor, objective: ObjectiveConfig
) -> Draw:
    """HP_Loss: x' in proportion to p_G L_hat; the gradient of L_S is kept for the sampled column alone."""
    with torch.no_grad():
        z_BKV = scores(None)
    weights_BKV = hp_loss_weights(prediction.p_BKV, z_BKV, prediction.original_BK, objective.temperature)
    sampled = _sample(weights_BKV, prediction, uniforms_BK, objective)
    return _draw(prediction, sampled, z_BK=scores(sampled.tokens_X))


def draw_from_head(prediction: Prediction, scores: Scores, uniforms_BK: Tensor, objective: ObjectiveConfig) -> Draw:
    """HP_Dist: x' from p_S, or from a proposal around it that leaves L_S unbiased."""
    scores_BKV = scores(None)
    p_S_BKV = scores_BKV.detach().softmax(-1)
    weights_BKV = tempered(p_S_BKV, objective.temperature)
    if objective.mixture:
        weights_BKV = mixture(weights_BKV / weights_BKV.sum(-1, keepdim=True), prediction.p_BKV, objective.mixture)
    sampled = _sample(weights_BKV, prediction, uniforms_BK, objective)
    log_p_S_BK = log_probability(scores_BKV, p_S_BKV, largest(scores_BKV), sampled.tokens_X)
    return _draw(prediction, sampled, log_p_S_BK=log_p_S_BK)


def _sample(weights_BKV: Tensor, prediction: Prediction, uniforms_BK: Tensor, objective: ObjectiveConfig) -> Sampled:
    if objective.forbid_original:
        weights_BKV = without_original(weights_BKV, prediction.original_BK)
    sampled = sample(weights_BKV, uniforms_BK)
    return sampled if prediction.entropy_BK is None else sampled._replace(entropy_X=entropy(weights_BKV))


def _draw(prediction: Prediction, sampled: Sampled, **beliefs: Tensor | None) -> Draw:
    return Draw(
        tokens_BK=sampled.tokens_X,
        log_p_G_BK=log_at(prediction.p_BKV, sampled.tokens_X),
        log_q_BK=sampled.log_probability_X,
        log_max_p_G_BK=prediction.log_max_p_BK,
        log_max_q_BK=sampled.log_largest_X,
        entropy_p_G_BK=prediction.entropy_BK,
        entropy_q_BK=sampled.entropy_X,
        **beliefs,
    )
