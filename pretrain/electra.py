"""Generator, sampling head and discriminator as one module: one forward, one loss (paper section 3).

    masked ids -> generator -> p_G, D_hat -> p_S -> replaced ids -> discriminator -> L_G + lambda1 L_S + lambda2 L_D

Shape letters: B batch, L length, K masked positions a sequence, H hidden size, E embedding size, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretrain.config import ModelConfig, ObjectiveConfig
from pretrain.data import Batch
from pretrain.encoder import ElectraEncoder, Embeddings
from pretrain.heads import DiscriminatorHead, VocabularyScores, VocabularyTransform
from pretrain.losses import discriminator_loss, focal_loss, hp_dist_sampler_loss, hp_loss_sampler_loss
from pretrain.replacement import hp_loss_log_weights, replace, sample


class Draw(NamedTuple):
    """Replacements of the masked positions and what was believed of them."""

    tokens_BK: Tensor
    """Sampled ids x'."""
    log_p_S_BK: Tensor | None
    """log p_S(x'), HP_Dist alone; differentiable inside the forward."""
    z_BK: Tensor | None
    """The sampling head's logit of x', HP_Loss alone: D_hat = sigmoid(z); differentiable inside the forward."""

    def detach(self) -> "Draw":
        """The same numbers without their gradient."""
        log_p_S_BK, z_BK = (None if part is None else part.detach() for part in (self.log_p_S_BK, self.z_BK))
        return Draw(self.tokens_BK, log_p_S_BK, z_BK)


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
            self._start_at_generator_distribution()

    @torch.no_grad()
    def _start_at_generator_distribution(self) -> None:
        """Both heads start with p_S = p_G: a constant estimate (HP_Loss), a copy of the MLM head (HP_Dist)."""
        if self.objective.name == "hp_loss":
            self.sampler_transform.LayerNorm.weight.zero_()
        else:
            self.sampler_transform.load_state_dict(self.generator_predictions.state_dict())
            self.sampler_scores.load_state_dict(self.generator_lm_head.state_dict())

    def forward(self, batch: Batch) -> ElectraOutput:
        original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
        hidden_BKH = self._generate(batch, original_BK)
        projected_BKE = self.generator_predictions(hidden_BKH)
        logits_BKV = self.generator_lm_head(projected_BKE, self._word_embeddings)
        log_p_G_BKV = logits_BKV.log_softmax(-1)
        log_p_original_BK = _at(log_p_G_BKV, original_BK)
        draw = self._draw(hidden_BKH, log_p_G_BKV.detach(), original_BK, batch.uniforms_BK)

        replaced_ids_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, batch.masked_valid_BK, draw.tokens_BK)
        replaced_BL = replaced_ids_BL != batch.input_ids_BL  # a sampled original counts as original
        d_BL = self._discriminate(batch, replaced_ids_BL)

        loss_D_BL = discriminator_loss(d_BL, replaced_BL)
        loss_G_BK = focal_loss(log_p_original_BK, self.objective.gamma)
        loss_S_BK = self._sampler_loss(draw, log_p_G_BKV.detach(), d_BL, loss_D_BL, batch.masked_positions_BK)
        loss = (
            _masked_sum(loss_G_BK, batch.masked_valid_BK) / batch.masked_count
            + self.objective.lambda1 * _masked_sum(loss_S_BK, batch.masked_valid_BK) / batch.masked_count
            + self.objective.lambda2 * _masked_sum(loss_D_BL, batch.attention_mask_BL) / batch.token_count
        )
        return ElectraOutput(
            loss=loss,
            generator_loss_BK=loss_G_BK.detach(),
            sampler_loss_BK=loss_S_BK.detach(),
            discriminator_loss_BL=loss_D_BL.detach(),
            log_p_original_BK=log_p_original_BK.detach(),
            top_BK=logits_BKV.detach().argmax(-1),
            draw=draw.detach(),
            d_BL=d_BL.detach(),
            replaced_BL=replaced_BL,
        )

    @property
    def _word_embeddings(self) -> nn.Module:
        return self.discriminator.embeddings.word_embeddings

    def _generate(self, batch: Batch, original_BK: Tensor) -> Tensor:
        """Generator states at the masked positions [B, K, H]; the vocabulary heads see no other position."""
        mask_BK = torch.full_like(original_BK, self.special_mask_id)
        masked_ids_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, batch.masked_valid_BK, mask_BK)
        hidden_BLH = self.generator(masked_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        index_BKH = batch.masked_positions_BK[..., None].expand(-1, -1, hidden_BLH.shape[-1])
        return hidden_BLH.gather(1, index_BKH)

    def _draw(self, hidden_BKH: Tensor, log_p_G_BKV: Tensor, original_BK: Tensor, uniforms_BK: Tensor) -> Draw:
        """Samples x' from p_S; where the gradient of L_S is wanted it is kept for the sampled column alone."""
        temperature = self.objective.temperature
        if not self.objective.learns_to_sample:
            return Draw(sample(log_p_G_BKV / temperature, uniforms_BK), None, None)
        projected_BKE = self.sampler_transform(hidden_BKH)
        if self.objective.name == "hp_dist":
            log_p_S_BKV = self.sampler_scores(projected_BKE, self._word_embeddings).log_softmax(-1)
            tokens_BK = sample(log_p_S_BKV, uniforms_BK)
            return Draw(tokens_BK, _at(log_p_S_BKV, tokens_BK), None)
        with torch.no_grad():
            z_BKV = self.sampler_scores(projected_BKE, self._word_embeddings)
        tokens_BK = sample(hp_loss_log_weights(log_p_G_BKV, z_BKV, original_BK, temperature), uniforms_BK)
        return Draw(tokens_BK, None, self.sampler_scores(projected_BKE, self._word_embeddings, tokens_BK))

    def _discriminate(self, batch: Batch, input_ids_BL: Tensor) -> Tensor:
        hidden_BLH = self.discriminator(input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.discriminator_predictions(hidden_BLH)

    def _sampler_loss(
        self, draw: Draw, log_p_G_BKV: Tensor, d_BL: Tensor, loss_D_BL: Tensor, positions_BK: Tensor
    ) -> Tensor:
        if draw.z_BK is not None:
            return hp_loss_sampler_loss(draw.z_BK, d_BL.gather(1, positions_BK))
        if draw.log_p_S_BK is not None:
            log_p_G_BK = _at(log_p_G_BKV, draw.tokens_BK)
            return hp_dist_sampler_loss(draw.log_p_S_BK, log_p_G_BK, loss_D_BL.gather(1, positions_BK))
        return torch.zeros_like(loss_D_BL.gather(1, positions_BK))


def _at(values_BKV: Tensor, ids_BK: Tensor) -> Tensor:
    return values_BKV.gather(-1, ids_BK[..., None]).squeeze(-1)


def _masked_sum(values: Tensor, valid: Tensor) -> Tensor:
    return values.where(valid, 0.0).sum()
