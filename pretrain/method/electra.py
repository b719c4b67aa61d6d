"""Generator, sampling and discriminator as one module: one forward, one loss (paper section 3).

    masked ids -> generator -> p_G -> x' -> replaced ids -> discriminator -> L_G + lambda1 L_S + lambda2 L_D

`Detection.forward` is this line. Shape letters: B batch, L length, K masked positions per sequence, H hidden size,
E embedding size.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from pretrain.data.batches import Batch
from pretrain.method.losses import discriminator_loss
from pretrain.method.objective import Cost, Detected, Objective, ObjectiveConfig, Output, PredictionConfig
from pretrain.method.sampling import AtPositions, Draw, Prediction, draw_from, importance_weights, predict, replace
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import Encoder
from pretrain.model.heads import HeadScores, VocabularyScores
from pretrain.model.sizes import EncoderSizes

SamplerLoss = Callable[[Tensor, Tensor], Tensor]
"""L_S of a draw, [B, K], as a function of the discriminator's logits and losses at the masked positions."""


class DetectionConfig(ObjectiveConfig):
    """Settings of objectives with a discriminator."""

    lambda2: float = Field(default=50.0, ge=0, le=1e6)
    """Weight of the discriminator's loss (paper and ELECTRA: 50)."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature T of sampling: p_G^(1/T) before reweighting, p_S^(1/T) for HP_Dist (ELECTRA: 1)."""
    forbid_original: bool = False
    """Never samples the original token (google-research/electra `disallow_correct`)."""
    importance_weighting: bool = False
    """Weights L_D of a masked position by p_G/p_S of its token: the estimator of the paper's proposition.

    Its expectation is exactly the loss under p_G if a sequence has one masked position. With several it is approximate,
    because the loss also depends on the tokens drawn at the others. Unmasked positions have weight 1.
    """

    @property
    def lambdas(self) -> tuple[float, float]:
        """lambda1 and lambda2, the weights of L_S and L_D; L_G has weight 1."""
        return 0.0, self.lambda2

    @field_validator("importance_weighting")
    @classmethod
    def _weighs_originals_too(cls, weighs: bool, info: ValidationInfo) -> bool:
        if weighs and info.data.get("forbid_original"):
            raise ValueError("true with forbid_original, but its estimator must also sample originals; switch one off")
        return weighs


class Detection(Objective):
    """A discriminator of replaced tokens; subclasses predict p_G, and may draw from a p_S that differs from p_G."""

    objective: DetectionConfig
    discriminator: Encoder
    discriminator_predictions: nn.Module

    def forward(self, batch: Batch, entropies: bool = False, from_p_G: bool = False) -> Output:
        """Computes the losses of one micro-batch. With `from_p_G`, x' is drawn as in ELECTRA."""
        positions_BK, valid_BK = batch.masked_positions_BK, batch.masked_valid_BK
        prediction = self.predict(batch, entropies)
        draw = self.draw_from_p_G if from_p_G else self.draw
        drawn, sampler_loss = draw(batch, prediction)
        d_BL, replaced_BL = self.discriminate(batch, drawn.tokens_BK)
        loss_G_BK = prediction.loss_BK
        loss_D_BL = weighted_loss_D_BL = discriminator_loss(d_BL, replaced_BL)
        loss_S_BK = sampler_loss(d_BL.gather(1, positions_BK), loss_D_BL.gather(1, positions_BK))
        if self.objective.importance_weighting:
            weighted_loss_D_BL = loss_D_BL * importance_weights(drawn.log_ratio_BK, batch)
        lambda1, lambda2 = self.objective.lambdas
        # the counts are means per micro-batch, so averaging micro-batches gives the step's mean
        loss = (
            loss_G_BK.where(valid_BK, 0.0).sum() / batch.masked_count
            + lambda1 * loss_S_BK.where(valid_BK, 0.0).sum() / batch.masked_count
            + lambda2 * weighted_loss_D_BL.where(batch.attention_mask_BL, 0.0).sum() / batch.token_count
        )
        detected = Detected(drawn, loss_S_BK.detach(), loss_D_BL.detach(), d_BL.detach(), replaced_BL)
        return Output.of(loss, prediction, detected)

    @abstractmethod
    def predict(self, batch: Batch, entropies: bool = False) -> Prediction:
        """Returns p_G at the masked positions, and L_G."""

    def draw(self, batch: Batch, prediction: Prediction) -> tuple[Draw, SamplerLoss]:
        """Draws x' for training; returns the draw and the function that computes the sampler's loss L_S."""
        return self.draw_from_p_G(batch, prediction)

    def draw_from_p_G(self, batch: Batch, prediction: Prediction) -> tuple[Draw, SamplerLoss]:
        """Draws x' as in ELECTRA; returns the draw and an L_S of 0, as no sampler learns."""
        q = prediction.p.tempered(self.objective.temperature)
        return draw_from(q, prediction, batch.uniforms_BK, self.objective.forbid_original), no_loss

    def discriminate(self, batch: Batch, tokens_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the discriminator's logits d with `tokens` at the masked positions, and a mask of the positions that
        differ from the original: a sampled original counts as original. Both [B, L].
        """
        input_ids_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, batch.masked_valid_BK, tokens_BK)
        hidden_BLH = self.discriminator(input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.discriminator_predictions(hidden_BLH), input_ids_BL != batch.input_ids_BL


class ReplacementConfig(DetectionConfig, PredictionConfig):
    """Settings of an objective whose replacements come from a generator."""

    @property
    def cost(self) -> Cost:
        return super().cost._replace(keeps_scores=self.temperature != 1 or self.forbid_original)


class Electra(Detection):
    """ELECTRA: x' is drawn from p_G.

    Both encoders share word, position and segment embeddings with their LayerNorm; with another
    `model.embedding_sharing` the discriminator's start equal to the generator's. The vocabulary heads use the
    generator's word embeddings as output matrix, each with its own bias.
    """

    class Config(ReplacementConfig):
        name: Literal["electra"] = "electra"

    title = "ELECTRA"
    exports = {
        ".": ("ElectraForPreTraining", "discriminator", "discriminator_predictions"),
        "generator": ("ElectraForMaskedLM", "generator", "generator_predictions", "generator_lm_head"),
    }
    objective: ReplacementConfig

    def build(self, model: ModelConfig, vocab_size: int) -> None:
        generator, discriminator = self.encoders(model, vocab_size)
        embeddings = model.parts.embeddings(discriminator)
        self.generator = model.parts.encoder(generator, embeddings)
        self.generator_predictions = model.parts.transform(generator)
        self.generator_lm_head = VocabularyScores(generator)
        self.discriminator = model.parts.encoder(discriminator, embeddings)
        if model.embedding_sharing == "nes":
            self.discriminator.embeddings = deepcopy(embeddings)
        elif model.embedding_sharing == "gdes":
            self.discriminator.embeddings = model.parts.disentangled(embeddings)
        self.discriminator_predictions = model.parts.detector(discriminator)

    @staticmethod
    def encoders(model: ModelConfig, vocab_size: int) -> tuple[EncoderSizes, ...]:
        return model.generator(vocab_size), model.discriminator(vocab_size)

    def predict(self, batch: Batch, entropies: bool = False) -> Prediction:
        hidden_BKH = masked_states(self.generator, batch, self.special_mask_id, self.objective.mask_keep_fraction)
        projected_BKE = self.generator_predictions(hidden_BKH)
        scores = HeadScores(projected_BKE, self.generator_lm_head, self.generator.embeddings.word_embeddings)
        return predict(batch, hidden_BKH, scores.softmax(), self.objective.gamma, entropies)


class Sampler(Electra):
    """ELECTRA with x' drawn from a distribution p_S other than p_G; subclasses define `draw`.

    A draw gives every token its log-probabilities under p_G and p_S, so importance weighting and all reports work.
    """

    title = "ELECTRA with sampled replacements"

    def outputs(self, batch: Batch) -> Mapping[str, Output]:
        return {"p_G": self(batch, entropies=True, from_p_G=True), "p_S": self(batch, entropies=True)}

    @abstractmethod
    def draw(self, batch: Batch, prediction: Prediction) -> tuple[Draw, SamplerLoss]: ...


def no_loss(d_BK: Tensor, loss_D_BK: Tensor) -> Tensor:
    """Returns the L_S of a sampler that learns nothing: 0."""
    return torch.zeros_like(loss_D_BK)


def masked_states(encoder: Encoder, batch: Batch, special_mask_id: int, keep_fraction: float) -> Tensor:
    """Returns the encoder's hidden states at the masked positions, [B, K, H], all that the vocabulary heads need."""
    mask_BK = torch.full_like(batch.masked_positions_BK, special_mask_id)
    change_BK = batch.masked_valid_BK & (batch.keep_uniforms_BK >= keep_fraction)
    masked_ids_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, change_BK, mask_BK)
    hidden_BLH = encoder(masked_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    return AtPositions.apply(hidden_BLH, batch.masked_positions_BK)
