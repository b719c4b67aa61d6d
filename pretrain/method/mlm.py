"""The masked-language-model baseline (BERT, RoBERTa): one encoder of the discriminator's size, trained only with L_G.

Shape letters: B batch, K masked positions per sequence.
"""

from typing import Literal

from pretrain.data.batches import Batch
from pretrain.method.electra import masked_states
from pretrain.method.objective import Objective, Output, PredictionConfig
from pretrain.method.sampling import predict
from pretrain.model.config import ModelConfig
from pretrain.model.heads import HeadScores, VocabularyScores
from pretrain.model.sizes import EncoderSizes


class MaskedLM(Objective):
    """A masked language model without replacements; parameter names are `ElectraForMaskedLM`'s."""

    title = "masked language model"
    exports = {".": ("ElectraForMaskedLM", "electra", "generator_predictions", "generator_lm_head")}

    class Config(PredictionConfig):
        name: Literal["mlm"] = "mlm"

    objective: Config

    def build(self, model: ModelConfig, vocab_size: int) -> None:
        (config,) = self.encoders(model, vocab_size)
        self.electra = model.parts.encoder(config)
        self.generator_predictions = model.parts.transform(config)
        self.generator_lm_head = VocabularyScores(config)

    @staticmethod
    def encoders(model: ModelConfig, vocab_size: int) -> tuple[EncoderSizes, ...]:
        return (model.discriminator(vocab_size),)

    def forward(self, batch: Batch, entropies: bool = False) -> Output:
        hidden_BKH = masked_states(self.electra, batch, self.special_mask_id, self.objective.mask_keep_fraction)
        projected_BKE = self.generator_predictions(hidden_BKH)
        scores = HeadScores(projected_BKE, self.generator_lm_head, self.electra.embeddings.word_embeddings)
        prediction = predict(batch, hidden_BKH, scores.softmax(), self.objective.gamma, entropies)
        loss = prediction.loss_BK.where(batch.masked_valid_BK, 0.0).sum() / batch.masked_count
        return Output.of(loss, prediction)
