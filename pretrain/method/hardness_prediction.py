"""The paper's two objectives, hardness prediction by loss (HP_Loss) and by distribution (HP_Dist): they learn to sample
replacements that are hard to detect.

Both add a sampling head on the generator's hidden states: e(x)·h_S and, by default, a bias for each token x.
Shape letters: B batch, K masked positions per sequence, H hidden size, E embedding size, V vocabulary.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import ReplacementConfig, Sampler, SamplerLoss
from pretrain.method.objective import Cost
from pretrain.method.sampling import Draw, Prediction, draw_from
from pretrain.model.config import ModelConfig
from pretrain.model.distribution import LEAST_LOSS
from pretrain.model.heads import HeadScores, VocabularyScores


class SamplingHeadConfig(ReplacementConfig):
    """Settings of an objective with a sampling head."""

    lambda1: float = Field(default=5.0, ge=0, le=1e6)
    """Weight of the sampling head's loss (paper: 5 for HP_Loss, 1 for HP_Dist); above 1e6, fp32 rounds L_G away."""
    detach_sampler_input: bool = False
    """Trains only the sampling head and its bias with L_S, not generator and embeddings (the paper does not say)."""
    sampling_bias: bool = True
    """Adds a bias per token to the sampling head's e(x)·h_S; the paper's formulas have none."""
    sampling_start: Literal["proposal", "normal"] = "proposal"
    """`proposal`: p_S = p_G at step 0 (HP_Dist without bias: if the MLM head's bias is 0, as in a fresh model).
    `normal`: random, like any new head. The paper does not say."""

    @property
    def lambdas(self) -> tuple[float, float]:
        return self.lambda1, self.lambda2

    @property
    def cost(self) -> Cost:
        return super().cost._replace(vocabulary_products=4)  # the gradient of L_S needs the sampled tokens only


class SamplingHead(Sampler):
    """ELECTRA with a sampling head. Subclasses define how the head starts, how it draws, and its loss."""

    objective: SamplingHeadConfig

    def build(self, model: ModelConfig, vocab_size: int) -> None:
        super().build(model, vocab_size)
        self.sampler_transform = model.parts.transform(self.generator.config)
        self.sampler_scores = VocabularyScores(self.generator.config, self.objective.sampling_bias)
        self.start()

    def score(self, hidden_BKH: Tensor) -> HeadScores:
        """Returns e(x)·h_S, plus the bias if there is one, from the generator's hidden states."""
        detached = self.objective.detach_sampler_input
        projected_BKE = self.sampler_transform(hidden_BKH.detach() if detached else hidden_BKH)
        return HeadScores(projected_BKE, self.sampler_scores, self.generator.embeddings.word_embeddings, detached)


class HPLoss(SamplingHead):
    """HP_Loss: the head's D_hat = sigmoid(z) estimates the discriminator; x' is drawn in proportion to p_G L_hat, where
    L_hat is the discriminator's loss by this estimate (`Distribution.times_estimated_loss`).
    """

    title = "ELECTRA with replacements sampled by estimated loss (HP_Loss)"

    class Config(SamplingHeadConfig):
        name: Literal["hp_loss"] = "hp_loss"

    least_loss = LEAST_LOSS
    """Lower bound on L_hat."""

    @property
    def exponent(self) -> float:
        """Power to which L_hat is raised; samplers/power.py has a setting for it."""
        return 1.0

    @torch.no_grad()
    def start(self) -> None:
        """With `sampling_start` = `proposal`, starts at z = 0: all tokens' estimated losses are equal, so p_S = p_G."""
        if self.objective.sampling_start == "proposal":
            self.sampler_transform.get_parameter("LayerNorm.weight").zero_()

    def draw(self, batch: Batch, prediction: Prediction) -> tuple[Draw, SamplerLoss]:
        z, p_G = self.score(prediction.hidden_BKH), prediction.p.tempered(self.objective.temperature)
        q = p_G.times_estimated_loss(z, prediction.original_BK, self.exponent, self.least_loss)
        drawn = draw_from(q, prediction, batch.uniforms_BK, self.objective.forbid_original)
        z_BK = z.of(drawn.tokens_BK)
        estimate_BK = F.softplus(torch.where(drawn.tokens_BK == prediction.original_BK, -z_BK, z_BK))
        drawn = drawn._replace(estimated_loss_BK=estimate_BK.detach())
        return drawn, lambda d_BK, loss_D_BK: hp_loss_sampler_loss(z_BK, d_BK)


class HPDist(SamplingHead):
    """HP_Dist: the head outputs the sampling distribution itself, p_S = softmax(e(x)·h_S)."""

    title = "ELECTRA with replacements sampled by a learned distribution (HP_Dist)"

    class Config(SamplingHeadConfig):
        name: Literal["hp_dist"] = "hp_dist"
        mixture: float = Field(default=0.0, ge=0, lt=1)
        """Samples from (1 - mixture) p_S + mixture p_G, which bounds the importance ratio p_G/q by 1/mixture."""

        @property
        def cost(self) -> Cost:
            return super().cost._replace(vocabulary_products=6)  # the whole softmax

    objective: Config

    @torch.no_grad()
    def start(self) -> None:
        """With `sampling_start` = `proposal`, starts as a copy of the MLM head, so p_S = p_G."""
        if self.objective.sampling_start == "proposal":
            self.sampler_transform.load_state_dict(self.generator_predictions.state_dict())
            if self.objective.sampling_bias:
                self.sampler_scores.load_state_dict(self.generator_lm_head.state_dict())

    def draw(self, batch: Batch, prediction: Prediction) -> tuple[Draw, SamplerLoss]:
        p_S = self.score(prediction.hidden_BKH).softmax()
        q = p_S.tempered(self.objective.temperature)
        if self.objective.mixture:
            q = q.mixed(prediction.p, self.objective.mixture)
        drawn = draw_from(q, prediction, batch.uniforms_BK, self.objective.forbid_original)
        log_p_S_BK = p_S.log_p(drawn.tokens_BK)
        return drawn, lambda d_BK, loss_D_BK: hp_dist_sampler_loss(log_p_S_BK, drawn.log_ratio_BK, loss_D_BK)


def hp_loss_sampler_loss(z_sampled: Tensor, d: Tensor) -> Tensor:
    """Returns HP_Loss's L_S = (D_hat(x') - D(x'))^2 at the sampled tokens; D is detached."""
    return (torch.sigmoid(z_sampled) - torch.sigmoid(-d.detach())) ** 2


def hp_dist_sampler_loss(log_p_S: Tensor, log_ratio: Tensor, discriminator_loss: Tensor) -> Tensor:
    """Returns HP_Dist's L_S = -(p_G / p_S) L_D log p_S at the sampled tokens; the ratio and L_D are detached.

    `log_ratio` is the log of p_G over the distribution that x' was drawn from, which is p_S in the paper. For any such
    distribution, the expected gradient equals the gradient of the cross-entropy of p_S relative to p_G L_D.
    """
    return -(torch.exp(log_ratio.detach()) * discriminator_loss.detach()) * log_p_S
