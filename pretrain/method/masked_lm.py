"""The masked language model: what the generator is, and alone the baseline of objective `mlm` (BERT's, RoBERTa's).

Shape letters: B batch, L length, K masked positions a sequence, H hidden size, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretrain.data.batches import Batch
from pretrain.method.losses import focal_loss, log_probability
from pretrain.method.objectives import ObjectiveConfig
from pretrain.method.replacement import entropy, keeps_token, replace
from pretrain.method.vocabulary import largest
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import ElectraEncoder
from pretrain.model.heads import VocabularyScores, VocabularyTransform


class Prediction(NamedTuple):
    """What a masked language model says of the masked positions."""

    p_BKV: Tensor
    """Of every token, without gradient."""
    log_p_original_BK: Tensor
    """Of the original tokens, differentiable."""
    original_BK: Tensor
    top_BK: Tensor
    """The most likely ids."""
    entropy_BK: Tensor | None = None
    """In nats, where it was asked for: it costs a pass over the vocabulary."""

    @property
    def log_max_p_BK(self) -> Tensor:
        """Log-probability of the most likely token."""
        return log_at(self.p_BKV, self.top_BK)


class MaskedLMOutput(NamedTuple):
    """The loss to differentiate, and per-position tensors (detached) for the metrics."""

    loss: Tensor
    generator_loss_BK: Tensor
    log_p_original_BK: Tensor
    top_BK: Tensor
    log_max_p_G_BK: Tensor
    entropy_p_G_BK: Tensor | None


class MaskedLM(nn.Module):
    """An encoder of the discriminator's size that learns L_G; parameter names are `ElectraForMaskedLM`'s."""

    def __init__(self, model: ModelConfig, objective: ObjectiveConfig, vocab_size: int, special_mask_id: int) -> None:
        super().__init__()
        self.objective = objective
        self.special_mask_id = special_mask_id
        config = model.discriminator(vocab_size)
        self.electra = ElectraEncoder(config)
        self.generator_predictions = VocabularyTransform(config)
        self.generator_lm_head = VocabularyScores(config)

    def forward(self, batch: Batch, entropies: bool = False) -> MaskedLMOutput:
        hidden_BKH = masked_states(self.electra, batch, self.special_mask_id, self.objective.mask_keep_fraction)
        words = self.electra.embeddings.word_embeddings
        prediction = predict(batch, self.generator_lm_head(self.generator_predictions(hidden_BKH), words), entropies)
        log_p_original_BK = prediction.log_p_original_BK
        loss_BK = focal_loss(log_p_original_BK, self.objective.gamma)
        return MaskedLMOutput(
            loss=masked_sum(loss_BK, batch.masked_valid_BK) / batch.masked_count,
            generator_loss_BK=loss_BK.detach(),
            log_p_original_BK=log_p_original_BK.detach(),
            top_BK=prediction.top_BK,
            log_max_p_G_BK=prediction.log_max_p_BK,
            entropy_p_G_BK=prediction.entropy_BK,
        )


def masked_states(encoder: ElectraEncoder, batch: Batch, special_mask_id: int, keep_fraction: float) -> Tensor:
    """The encoder's states at the masked positions [B, K, H]; the vocabulary heads see no other position."""
    mask_BK = torch.full_like(batch.masked_positions_BK, special_mask_id)
    change_BK = batch.masked_valid_BK
    if keep_fraction:
        change_BK = change_BK & ~keeps_token(batch.uniforms_BK, keep_fraction)
    masked_ids_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, change_BK, mask_BK)
    hidden_BLH = encoder(masked_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    index_BKH = batch.masked_positions_BK[..., None].expand(-1, -1, hidden_BLH.shape[-1])
    return hidden_BLH.gather(1, index_BKH)


def predict(batch: Batch, logits_BKV: Tensor, with_entropy: bool = False) -> Prediction:
    """The distribution that the logits stand for."""
    original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    p_BKV, top_BK = logits_BKV.detach().softmax(-1), largest(logits_BKV)
    return Prediction(
        p_BKV=p_BKV,
        log_p_original_BK=log_probability(logits_BKV, p_BKV, top_BK, original_BK),
        original_BK=original_BK,
        top_BK=top_BK,
        entropy_BK=entropy(p_BKV) if with_entropy else None,
    )


def log_at(p_BKV: Tensor, ids_BK: Tensor) -> Tensor:
    """Log-probability of one token a position; of one too small for its type, of the least it can hold."""
    p_BK = p_BKV.gather(-1, ids_BK[..., None]).squeeze(-1)
    return p_BK.clamp(min=torch.finfo(p_BK.dtype).tiny).log()


def masked_sum(values: Tensor, valid: Tensor) -> Tensor:
    return values.where(valid, 0.0).sum()
