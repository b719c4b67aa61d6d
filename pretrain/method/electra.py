"""Generator, sampling and discriminator as one module: one forward, one loss (paper section 3).

    masked ids -> generator -> p_G -> x' -> replaced ids -> discriminator -> L_G + lambda1 L_S + lambda2 L_D

Shape letters: B batch, L length, K masked positions per sequence, H hidden size, V vocabulary.
"""

from copy import deepcopy
from typing import Any, NamedTuple

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.losses import discriminator_loss, focal_loss
from pretrain.method.objectives.objective import Objective, PredictionConfig
from pretrain.method.sampling import AtPositions, Draw, Prediction, draw_from, importance_weights, predict, replace
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import DisentangledEmbeddings, ElectraEncoder, Embeddings, EncoderConfig
from pretrain.model.heads import DiscriminatorHead, Scores, VocabularyScores, VocabularyTransform


class ReplacementConfig(PredictionConfig):
    """Settings of an objective that replaces tokens."""

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
    def draws_from_scores(self) -> bool:
        return self.temperature != 1 or self.forbid_original

    @field_validator("importance_weighting")
    @classmethod
    def _weighs_originals_too(cls, weighs: bool, info: ValidationInfo) -> bool:
        if weighs and info.data.get("forbid_original"):
            raise ValueError("true with forbid_original, but its estimator must also sample originals; switch one off")
        return weighs


class ElectraOutput(NamedTuple):
    """The result of one forward: the loss to differentiate, and detached per-position tensors for the metrics."""

    loss: Tensor
    generator_loss_BK: Tensor
    sampler_loss_BK: Tensor
    discriminator_loss_BL: Tensor
    log_p_original_BK: Tensor
    """log p_G(x) of the original tokens."""
    top_BK: Tensor
    """The generator's most likely ids."""
    draw: Draw
    d_BL: Tensor
    """The discriminator's logits; positive means "replaced"."""
    replaced_BL: Tensor
    """True where the discriminator's input differs from the original token."""


class Electra(Objective):
    """The paper's model without the sampling head: x' is drawn from p_G as in ELECTRA, unless a subclass overrides
    `draw`.

    Both encoders share word, position and segment embeddings with their LayerNorm; with another
    `model.embedding_sharing` the discriminator's start equal to the generator's. The vocabulary heads use the
    generator's word embeddings as output matrix, each with its own bias.
    """

    exports = {
        ".": ("ElectraForPreTraining", "discriminator", "discriminator_predictions"),
        "generator": ("ElectraForMaskedLM", "generator", "generator_predictions", "generator_lm_head"),
    }
    objective: ReplacementConfig
    sampler_weight = 0.0
    """lambda1, if there is a sampling head."""

    def __init__(self, model: ModelConfig, objective: Any, vocab_size: int, special_mask_id: int) -> None:
        super().__init__(model, objective, vocab_size, special_mask_id)
        generator, discriminator = self.encoders(model, vocab_size)
        embeddings = Embeddings(discriminator)
        self.generator = ElectraEncoder(generator, embeddings)
        self.generator_predictions = VocabularyTransform(generator)
        self.generator_lm_head = VocabularyScores(generator)
        self.discriminator = ElectraEncoder(discriminator, embeddings)
        if model.embedding_sharing == "nes":
            self.discriminator.embeddings = deepcopy(embeddings)
        elif model.embedding_sharing == "gdes":
            self.discriminator.embeddings = DisentangledEmbeddings(embeddings)
        self.discriminator_predictions = DiscriminatorHead(discriminator)

    @staticmethod
    def encoders(model: ModelConfig, vocab_size: int) -> tuple[EncoderConfig, ...]:
        return model.generator(vocab_size), model.discriminator(vocab_size)

    def forward(self, batch: Batch, entropies: bool = False) -> ElectraOutput:
        """Computes one micro-batch's losses; with `entropies`, also entropies of p_G and of the distribution of x'."""
        hidden_BKH, prediction = self.generate(batch, entropies)
        drawn = self.draw(hidden_BKH, prediction, batch.uniforms_BK)
        return self.judge(batch, prediction, drawn)

    def outputs(self, batch: Batch) -> dict[str, ElectraOutput]:
        hidden_BKH, prediction = self.generate(batch, entropies=True)
        draws = self.draws(hidden_BKH, prediction, batch.uniforms_BK)
        return {name: self.judge(batch, prediction, drawn) for name, drawn in draws.items()}

    def generate(self, batch: Batch, entropies: bool = False) -> tuple[Tensor, Prediction]:
        """Returns the generator's hidden states at the masked positions [B, K, H], and its prediction there."""
        hidden_BKH = masked_states(self.generator, batch, self.special_mask_id, self.objective.mask_keep_fraction)
        projected_BKE = self.generator_predictions(hidden_BKH)
        scores = Scores(projected_BKE, self.generator_lm_head, self.generator.embeddings.word_embeddings)
        return hidden_BKH, predict(batch, scores.softmax(), entropies)

    def draw(self, hidden_BKH: Tensor, prediction: Prediction, uniforms_BK: Tensor, from_p_G: bool = False) -> Draw:
        """Draws x' as in training, or from p_G if `from_p_G`; without a sampling head the two are the same."""
        q = prediction.p.tempered(self.objective.temperature)
        return draw_from(q, prediction, uniforms_BK, self.objective.forbid_original)

    def draws(self, hidden_BKH: Tensor, prediction: Prediction, uniforms_BK: Tensor) -> dict[str, Draw]:
        """Draws x' from every distribution of the objective, training's last: p_G, then p_S if one is learned."""
        return {"p_G": self.draw(hidden_BKH, prediction, uniforms_BK)}

    def judge(self, batch: Batch, prediction: Prediction, drawn: Draw) -> ElectraOutput:
        """Runs the discriminator on the drawn tokens, and returns all losses."""
        positions_BK, valid_BK = batch.masked_positions_BK, batch.masked_valid_BK
        d_BL, replaced_BL = self.discriminate(batch, drawn.tokens_BK)
        loss_D_BL = weighed_loss_D_BL = discriminator_loss(d_BL, replaced_BL)
        loss_G_BK = self.generator_loss(prediction)
        loss_S_BK = self.sampler_loss(drawn, d_BL.gather(1, positions_BK), loss_D_BL.gather(1, positions_BK))
        if self.objective.importance_weighting:
            weighed_loss_D_BL = loss_D_BL * importance_weights(drawn.log_ratio_BK, batch)
        return ElectraOutput(
            # this micro-batch's share of the means over the whole step
            loss=loss_G_BK.where(valid_BK, 0.0).sum() / batch.masked_count
            + self.sampler_weight * loss_S_BK.where(valid_BK, 0.0).sum() / batch.masked_count
            + self.objective.lambda2 * weighed_loss_D_BL.where(batch.attention_mask_BL, 0.0).sum() / batch.token_count,
            generator_loss_BK=loss_G_BK.detach(),
            sampler_loss_BK=loss_S_BK.detach(),
            discriminator_loss_BL=loss_D_BL.detach(),
            log_p_original_BK=prediction.log_p_original_BK.detach(),
            top_BK=prediction.p.top_X,
            draw=drawn._replace(head_BK=None),
            d_BL=d_BL.detach(),
            replaced_BL=replaced_BL,
        )

    def discriminate(self, batch: Batch, tokens_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the discriminator's logits d with `tokens` at the masked positions, and a mask of the positions that
        differ from the original: a sampled original counts as original. Both [B, L].
        """
        input_ids_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, batch.masked_valid_BK, tokens_BK)
        hidden_BLH = self.discriminator(input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.discriminator_predictions(hidden_BLH), input_ids_BL != batch.input_ids_BL

    def generator_loss(self, prediction: Prediction) -> Tensor:
        """Returns L_G at the masked positions [B, K]."""
        return focal_loss(prediction.log_p_original_BK, self.objective.gamma)

    def sampler_loss(self, drawn: Draw, d_BK: Tensor, loss_D_BK: Tensor) -> Tensor:
        """Returns L_S of the sampling head [B, K], from the discriminator's logits and losses at the masked positions;
        0 without a head.
        """
        return torch.zeros_like(loss_D_BK)


def masked_states(encoder: ElectraEncoder, batch: Batch, special_mask_id: int, keep_fraction: float) -> Tensor:
    """Returns the encoder's hidden states at the masked positions, [B, K, H]; the vocabulary heads need no others."""
    mask_BK = torch.full_like(batch.masked_positions_BK, special_mask_id)
    change_BK = batch.masked_valid_BK & (batch.keep_uniforms_BK >= keep_fraction)
    masked_ids_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, change_BK, mask_BK)
    hidden_BLH = encoder(masked_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    at_masked_BKH: Tensor = AtPositions.apply(hidden_BLH, batch.masked_positions_BK)
    return at_masked_BKH
