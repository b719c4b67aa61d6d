"""Generator, sampling head and discriminator as one module: one forward, one loss (paper section 3).

    masked ids -> generator -> p_G, D_hat -> p_S -> replaced ids -> discriminator -> L_G + lambda1 L_S + lambda2 L_D

Shape letters: B batch, L length, K masked positions a sequence, H hidden size, E embedding size, V vocabulary.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretrain.data.batches import Batch
from pretrain.method.losses import discriminator_loss, focal_loss, hp_dist_sampler_loss, hp_loss_sampler_loss
from pretrain.method.masked_lm import Prediction, masked_states, masked_sum, predict
from pretrain.method.objectives import ObjectiveConfig
from pretrain.method.replacement import importance_weights, replace
from pretrain.method.sampling import Draw, Scores, draw
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import ElectraEncoder, Embeddings
from pretrain.model.heads import DiscriminatorHead, VocabularyScores, VocabularyTransform


class ElectraOutput(NamedTuple):
    """What one forward gives: the loss to differentiate, and per-position tensors (detached) for the metrics."""

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
    replaced_BL: Tensor


class Electra(nn.Module):
    """The model of the paper; `special_mask_id` is the id of [MASK].

    Word, position and segment embeddings with their LayerNorm are shared by both encoders; the vocabulary heads use
    the word embeddings as output matrix with a bias of their own.
    """

    def __init__(self, model: ModelConfig, objective: ObjectiveConfig, vocab_size: int, special_mask_id: int) -> None:
        super().__init__()
        self.objective = objective
        self.special_mask_id = special_mask_id
        generator, discriminator = model.generator(vocab_size), model.discriminator(vocab_size)
        embeddings = Embeddings(discriminator)
        self.generator = ElectraEncoder(generator, embeddings)
        self.generator_predictions = VocabularyTransform(generator)
        self.generator_lm_head = VocabularyScores(generator)
        self.discriminator = ElectraEncoder(discriminator, embeddings)
        self.discriminator_predictions = DiscriminatorHead(discriminator)
        if objective.learns_to_sample:
            self.sampler_transform = VocabularyTransform(generator)
            self.sampler_scores = VocabularyScores(generator)
            self.start_at_generator_distribution()

    @torch.no_grad()
    def start_at_generator_distribution(self) -> None:
        """Both heads start with p_S = p_G: a constant estimate (HP_Loss), a copy of the MLM head (HP_Dist)."""
        if self.objective.name == "hp_loss":
            self.sampler_transform.LayerNorm.weight.zero_()
        else:
            self.sampler_transform.load_state_dict(self.generator_predictions.state_dict())
            self.sampler_scores.load_state_dict(self.generator_lm_head.state_dict())

    def forward(self, batch: Batch, entropies: bool = False) -> ElectraOutput:
        """One micro-batch; with `entropies` those of p_G and of what x' is drawn from come along, no more."""
        prediction, scores = self.generate(batch, entropies)
        return self.judge(batch, prediction, draw(prediction, scores, batch.uniforms_BK, self.objective))

    def generate(self, batch: Batch, entropies: bool = False) -> tuple[Prediction, Scores | None]:
        """What replacements are drawn from: p_G at the masked positions and, if there is one, the sampling head."""
        hidden_BKH = masked_states(self.generator, batch, self.special_mask_id, self.objective.mask_keep_fraction)
        return self.heads(batch, hidden_BKH, entropies)

    def heads(self, batch: Batch, hidden_BKH: Tensor, entropies: bool = False) -> tuple[Prediction, Scores | None]:
        """The same from the generator's states at the masked positions."""
        logits_BKV = self.generator_lm_head(self.generator_predictions(hidden_BKH), self._word_embeddings)
        return predict(batch, logits_BKV, entropies), self._sampler_scores(hidden_BKH)

    def judge(self, batch: Batch, prediction: Prediction, drawn: Draw) -> ElectraOutput:
        """The losses where the masked positions hold what was drawn."""
        log_p_original_BK = prediction.log_p_original_BK
        d_BL, replaced_BL = self.discriminate(batch, drawn.tokens_BK)

        loss_D_BL = discriminator_loss(d_BL, replaced_BL)
        loss_G_BK = focal_loss(log_p_original_BK, self.objective.gamma)
        loss_S_BK = self._sampler_loss(drawn, d_BL, loss_D_BL, batch.masked_positions_BK)
        weighed_loss_D_BL = loss_D_BL
        if self.objective.importance_weighting:
            weighed_loss_D_BL = loss_D_BL * importance_weights(drawn.log_ratio_BK, batch)
        return ElectraOutput(
            loss=self._total(batch, loss_G_BK, loss_S_BK, weighed_loss_D_BL),
            generator_loss_BK=loss_G_BK.detach(),
            sampler_loss_BK=loss_S_BK.detach(),
            discriminator_loss_BL=loss_D_BL.detach(),
            log_p_original_BK=log_p_original_BK.detach(),
            top_BK=prediction.top_BK,
            draw=drawn.detach(),
            d_BL=d_BL.detach(),
            replaced_BL=replaced_BL,
        )

    def discriminate(self, batch: Batch, tokens_BK: Tensor) -> tuple[Tensor, Tensor]:
        """The discriminator's logits d where the masked positions hold `tokens`, by whomever they were drawn, and where
        these differ from the original: a sampled original counts as original. Both [B, L].
        """
        input_ids_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, batch.masked_valid_BK, tokens_BK)
        hidden_BLH = self.discriminator(input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.discriminator_predictions(hidden_BLH), input_ids_BL != batch.input_ids_BL

    def _total(self, batch: Batch, loss_G_BK: Tensor, loss_S_BK: Tensor, loss_D_BL: Tensor) -> Tensor:
        """L_G + lambda1 L_S + lambda2 L_D, this micro-batch's share of the means over the whole step."""
        return (
            masked_sum(loss_G_BK, batch.masked_valid_BK) / batch.masked_count
            + self.objective.lambda1 * masked_sum(loss_S_BK, batch.masked_valid_BK) / batch.masked_count
            + self.objective.lambda2 * masked_sum(loss_D_BL, batch.attention_mask_BL) / batch.token_count
        )

    @property
    def _word_embeddings(self) -> nn.Module:
        return self.discriminator.embeddings.word_embeddings

    def _sampler_scores(self, hidden_BKH: Tensor) -> Scores | None:
        """e(x)·h_S of all tokens or chosen ones; `None` without a sampling head."""
        if not self.objective.learns_to_sample:
            return None
        alone = self.objective.detach_sampler_input
        projected_BKE = self.sampler_transform(hidden_BKH.detach() if alone else hidden_BKH)
        return partial(self.sampler_scores, projected_BKE, self._word_embeddings, frozen=alone)

    def _sampler_loss(self, drawn: Draw, d_BL: Tensor, loss_D_BL: Tensor, positions_BK: Tensor) -> Tensor:
        loss_D_BK = loss_D_BL.gather(1, positions_BK)
        if drawn.z_BK is not None:
            return hp_loss_sampler_loss(drawn.z_BK, d_BL.gather(1, positions_BK))
        if drawn.log_p_S_BK is not None:
            return hp_dist_sampler_loss(drawn.log_p_S_BK, drawn.log_ratio_BK, loss_D_BK, self.objective.ratio_clip)
        return torch.zeros_like(loss_D_BK)
