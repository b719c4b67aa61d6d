"""Samplers without a generator: x' is drawn from the same distribution over the vocabulary at every position.

This distribution takes the place of the generator's p_G in every report. Shape letters: B batch, K masked positions
per sequence, V vocabulary.
"""

from abc import abstractmethod
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from electra_sampler.foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.data.shards import Shards
from pretrain.method.electra import Detection, DetectionConfig, Electra
from pretrain.method.sampling import Prediction, predict
from pretrain.model.config import ModelConfig
from pretrain.model.distribution import Dense
from pretrain.model.sizes import EncoderSizes

MOST_TOKENS = 1 << 24
"""Tokens to count at most; the rarest frequency that matters, 1 in 10,000, is then known to 3%."""
READ_AT_ONCE = 1024
"""Sequences per read."""


class Floor(Detection):
    """A discriminator without a generator; subclasses give each token's weight. Special tokens are never drawn."""

    exports = {".": Electra.exports["."]}

    def build(self, model: ModelConfig, vocab_size: int) -> None:
        (config,) = self.encoders(model, vocab_size)
        self.discriminator = model.parts.encoder(config)
        self.discriminator_predictions = model.parts.detector(config)

    @staticmethod
    def encoders(model: ModelConfig, vocab_size: int) -> tuple[EncoderSizes, ...]:
        return (model.discriminator(vocab_size),)

    @abstractmethod
    def weigh(self, text: Shards) -> np.ndarray:
        """Returns the weight of every token, [V]; weights of special tokens are ignored."""

    @cached_property
    def p_V(self) -> Tensor:
        """The distribution over the vocabulary; the first use reads the run's shards.

        Raises:
            ConfigError: no token has a weight, or one has an invalid weight.
        """
        assert self.text is not None, "a model that draws is built with its text"
        text = self.text()
        weights_V = self.weigh(text).astype(np.float64)
        weights_V[list(text.manifest.special_tokens.model_dump().values())] = 0
        if not (weights_V >= 0).all() or not 0 < (total := weights_V.sum()) < np.inf:
            raise ConfigError(
                f"objective: {self.objective.name} cannot draw by its weights for {', '.join(text.names)}: expected"
                " finite ones, none negative, and one above 0 for a token that is not special, as [UNK] is; build the"
                " shards with a vocabulary that fits the text"
            )
        return torch.from_numpy(weights_V / total).float().to(next(self.parameters()).device)

    def predict(self, batch: Batch, entropies: bool = False) -> Prediction:
        """Returns the distribution as the prediction at every masked position, without hidden states."""
        p = Dense(self.p_V.expand(*batch.masked_positions_BK.shape, -1), normalized=True)
        return predict(batch, self.p_V.new_empty(0), p, None, entropies)


class Uniform(Floor):
    """Every token that is not special is equally likely."""

    title = "ELECTRA with replacements drawn uniformly from the vocabulary"

    class Config(DetectionConfig):
        name: Literal["uniform"] = "uniform"

    def weigh(self, text: Shards) -> np.ndarray:
        return np.ones(text.manifest.vocab_size)


class Unigram(Floor):
    """A token's probability is its frequency in the run's shards.

    At most `MOST_TOKENS` tokens are counted: the first in a fixed random order, with folders mixed by their weights.
    """

    title = "ELECTRA with replacements drawn by their frequency in the text"

    class Config(DetectionConfig):
        name: Literal["unigram"] = "unigram"

    def weigh(self, text: Shards) -> np.ndarray:
        counts_V = np.zeros(text.manifest.vocab_size, dtype=np.int64)
        sequences = min(len(text), max(1, MOST_TOKENS // text.manifest.seq_length))
        for start in range(0, sequences, READ_AT_ONCE):
            index_B, _ = text.mixture.shuffled(np.arange(start, min(start + READ_AT_ONCE, sequences)), seed=0)
            ids_BL, _, _ = text.read(index_B, np.zeros_like(index_B))
            counts_V += np.bincount(ids_BL.flatten(), minlength=len(counts_V))  # [PAD] is special
        return counts_V
