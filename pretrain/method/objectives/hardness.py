"""The paper's two objectives, which learn to sample what is hard for the discriminator: HP_Loss and HP_Dist.

Both add a sampling head over the generator's states: e(x)·h_S and, by default, a bias of its own for every token x.
Shape letters: B batch, K masked positions a sequence, H hidden size, E embedding size, V vocabulary.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from pretrain.method.electra import Electra, ReplacementConfig
from pretrain.method.sampling import (
    Draw,
    Prediction,
    draw_from,
    hp_loss_weights,
    log_probability,
    tempered,
)
from pretrain.model.config import ModelConfig
from pretrain.model.heads import VocabularyScores, VocabularyTransform


class SamplingHeadConfig(ReplacementConfig):
    """The switches of an objective with a sampling head."""

    lambda1: float = Field(default=5.0, ge=0, le=1e6)
    """Weight of the sampling head's loss (paper: 5 for HP_Loss, 1 for HP_Dist); beside 1e6 fp32 rounds L_G away."""
    detach_sampler_input: bool = False
    """L_S teaches the sampling head and its bias alone, not the generator and the embeddings (the paper is silent)."""
    sampling_bias: bool = True
    """The sampling head adds a bias of its own to e(x)·h_S; the paper's formulas have none."""
    sampling_start: Literal["proposal", "normal"] = "proposal"
    """`proposal`: p_S = p_G at step 0 (for HP_Dist without a bias, only if the MLM head's is 0, as in a fresh model).
    `normal`: random, as any new head. The paper is silent."""


class SamplingHead(Electra):
    """ELECTRA with a sampling head. A subclass says how the head starts, how it draws and what it learns."""

    objective: SamplingHeadConfig

    def __init__(self, model: ModelConfig, objective: Any, vocab_size: int, special_mask_id: int) -> None:
        super().__init__(model, objective, vocab_size, special_mask_id)
        self.sampler_transform = VocabularyTransform(self.generator.config)
        self.sampler_scores = VocabularyScores(self.generator.config, self.objective.sampling_bias)
        self.sampler_weight = self.objective.lambda1
        self.start()

    def project(self, hidden_BKH: Tensor) -> Tensor:
        """h_S [B, K, E] of the generator's states."""
        return self.sampler_transform(hidden_BKH.detach() if self.objective.detach_sampler_input else hidden_BKH)

    def score(self, projected_BKE: Tensor, ids_BK: Tensor | None = None) -> Tensor:
        """e(x)·h_S, and the bias if there is one, of every token [B, K, V], or of one token a position [B, K]."""
        words, frozen = self.generator.embeddings.word_embeddings, self.objective.detach_sampler_input
        return self.sampler_scores(projected_BKE, words, ids_BK, frozen)

    def draws(self, hidden_BKH: Tensor, prediction: Prediction, uniforms_BK: Tensor) -> dict[str, Draw]:
        return {
            "p_G": self.draw(hidden_BKH, prediction, uniforms_BK, from_p_G=True),
            "p_S": self.draw(hidden_BKH, prediction, uniforms_BK),
        }


class HPLoss(SamplingHead):
    """HP_Loss: the head estimates the discriminator's loss, D_hat = sigmoid(z), and x' is drawn by p_G L_hat."""

    title = "ELECTRA with replacements sampled by estimated loss (HP_Loss)"
    sampling_passes = 1  # the gradient is that of the sampled column

    class Config(SamplingHeadConfig):
        name: Literal["hp_loss"] = "hp_loss"

    @torch.no_grad()
    def start(self) -> None:
        """`proposal` estimates the same loss of every token: p_S = p_G."""
        if self.objective.sampling_start == "proposal":
            self.sampler_transform.LayerNorm.weight.zero_()

    def draw(self, hidden_BKH: Tensor, prediction: Prediction, uniforms_BK: Tensor, from_p_G: bool = False) -> Draw:
        projected_BKE = self.project(hidden_BKH)
        p_G_BKV, T = prediction.p_BKV, self.objective.temperature
        weights_BKV = tempered(p_G_BKV, T) if from_p_G else self.weights(projected_BKE, prediction)
        drawn = draw_from(weights_BKV, prediction, uniforms_BK, self.objective.forbid_original)
        z_BK = self.score(projected_BKE, drawn.tokens_BK)
        estimate_BK = F.softplus(torch.where(drawn.tokens_BK == prediction.original_BK, -z_BK, z_BK))
        return drawn._replace(head_BK=z_BK, estimated_loss_BK=estimate_BK.detach())

    @torch.no_grad()
    def weights(self, projected_BKE: Tensor, prediction: Prediction) -> Tensor:
        """p_S up to a factor."""
        z_BKV = self.score(projected_BKE)
        return hp_loss_weights(tempered(prediction.p_BKV, self.objective.temperature), z_BKV, prediction.original_BK)

    def sampler_loss(self, drawn: Draw, d_BK: Tensor, loss_D_BK: Tensor) -> Tensor:
        assert drawn.head_BK is not None
        return hp_loss_sampler_loss(drawn.head_BK, d_BK)


class HPDist(SamplingHead):
    """HP_Dist: the head is the sampling distribution itself, p_S = softmax(e(x)·h_S)."""

    title = "ELECTRA with replacements sampled by a learned distribution (HP_Dist)"
    sampling_passes = 3

    class Config(SamplingHeadConfig):
        name: Literal["hp_dist"] = "hp_dist"
        mixture: float = Field(default=0.0, ge=0, lt=1)
        """Samples from (1 - mixture) p_S + mixture p_G, which bounds p_G over the proposal by 1/mixture."""
        ratio_clip: float | None = Field(default=None, gt=0, le=1e30)
        """Largest p_G over proposal in L_S; it moves the optimum away from the paper's p_S."""

    objective: Config

    @torch.no_grad()
    def start(self) -> None:
        """`proposal` is a copy of the MLM head: p_S = p_G."""
        if self.objective.sampling_start == "proposal":
            self.sampler_transform.load_state_dict(self.generator_predictions.state_dict())
            if self.objective.sampling_bias:
                self.sampler_scores.load_state_dict(self.generator_lm_head.state_dict())

    def draw(self, hidden_BKH: Tensor, prediction: Prediction, uniforms_BK: Tensor, from_p_G: bool = False) -> Draw:
        scores_BKV = self.score(self.project(hidden_BKH))
        p_S_BKV = scores_BKV.detach().softmax(-1)
        weights_BKV = tempered(prediction.p_BKV if from_p_G else p_S_BKV, self.objective.temperature)
        if self.objective.mixture and not from_p_G:
            p_BKV = weights_BKV / weights_BKV.sum(-1, keepdim=True)  # both normalized, and so is the mixture
            weights_BKV = p_BKV.lerp(prediction.p_BKV, self.objective.mixture)
        drawn = draw_from(weights_BKV, prediction, uniforms_BK, self.objective.forbid_original)
        return drawn._replace(head_BK=log_probability(scores_BKV, p_S_BKV, drawn.tokens_BK))

    def sampler_loss(self, drawn: Draw, d_BK: Tensor, loss_D_BK: Tensor) -> Tensor:
        assert drawn.head_BK is not None
        return hp_dist_sampler_loss(drawn.head_BK, drawn.log_ratio_BK, loss_D_BK, self.objective.ratio_clip)


def hp_loss_sampler_loss(z_sampled: Tensor, d: Tensor) -> Tensor:
    """HP_Loss: L_S = (D_hat(x') - D(x'))^2 at the sampled tokens, D detached."""
    return (torch.sigmoid(z_sampled) - torch.sigmoid(-d.detach())) ** 2


def hp_dist_sampler_loss(
    log_p_S: Tensor, log_ratio: Tensor, discriminator_loss: Tensor, ratio_clip: float | None = None
) -> Tensor:
    """HP_Dist: L_S = -(p_G / p_S) L_D log p_S at the sampled tokens; the ratio and L_D are detached.

    `log_ratio` is log of p_G over the distribution x' was drawn from: p_S in the paper. Its expected gradient is that
    of the cross-entropy from p_G L_D to p_S whatever that distribution, as long as `ratio_clip` cuts nothing.
    """
    ratio = torch.exp(log_ratio.detach())
    if ratio_clip is not None:
        ratio = ratio.clamp(max=ratio_clip)
    return -(ratio * discriminator_loss.detach()) * log_p_S
