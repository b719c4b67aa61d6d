"""The masked-language-model baseline (BERT, RoBERTa): one encoder of the discriminator's size, trained only with L_G.

Shape letters: B batch, K masked positions per sequence.
"""

from typing import Any, Literal, NamedTuple

from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import masked_states
from pretrain.method.losses import focal_loss
from pretrain.method.objectives.objective import Objective, PredictionConfig
from pretrain.method.sampling import predict
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import ElectraEncoder, EncoderConfig
from pretrain.model.heads import Scores, VocabularyScores, VocabularyTransform


class MaskedLMOutput(NamedTuple):
    """The result of one forward: the loss to differentiate, and detached per-position tensors for the metrics."""

    loss: Tensor
    generator_loss_BK: Tensor
    log_p_original_BK: Tensor
    top_BK: Tensor
    log_max_p_G_BK: Tensor
    entropy_p_G_BK: Tensor | None


class MaskedLM(Objective):
    """A masked language model without replacements; parameter names are `ElectraForMaskedLM`'s."""

    title = "masked language model"
    exports = {".": ("ElectraForMaskedLM", "electra", "generator_predictions", "generator_lm_head")}
    sampling_passes = 0

    class Config(PredictionConfig):
        name: Literal["mlm"] = "mlm"

    objective: Config

    def __init__(self, model: ModelConfig, objective: Any, vocab_size: int, special_mask_id: int) -> None:
        super().__init__(model, objective, vocab_size, special_mask_id)
        (config,) = self.encoders(model, vocab_size)
        self.electra = ElectraEncoder(config)
        self.generator_predictions = VocabularyTransform(config)
        self.generator_lm_head = VocabularyScores(config)

    @staticmethod
    def encoders(model: ModelConfig, vocab_size: int) -> tuple[EncoderConfig, ...]:
        return (model.discriminator(vocab_size),)

    def forward(self, batch: Batch, entropies: bool = False) -> MaskedLMOutput:
        hidden_BKH = masked_states(self.electra, batch, self.special_mask_id, self.objective.mask_keep_fraction)
        projected_BKE = self.generator_predictions(hidden_BKH)
        scores = Scores(projected_BKE, self.generator_lm_head, self.electra.embeddings.word_embeddings)
        prediction = predict(batch, scores.softmax(), entropies)
        log_p_original_BK = prediction.log_p_original_BK
        loss_BK = focal_loss(log_p_original_BK, self.objective.gamma)
        return MaskedLMOutput(
            loss=loss_BK.where(batch.masked_valid_BK, 0.0).sum() / batch.masked_count,
            generator_loss_BK=loss_BK.detach(),
            log_p_original_BK=log_p_original_BK.detach(),
            top_BK=prediction.p.top_X,
            log_max_p_G_BK=prediction.p.log_largest_X,
            entropy_p_G_BK=prediction.entropy_BK,
        )
