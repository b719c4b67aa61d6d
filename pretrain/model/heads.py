"""The heads on top of the encoders; parameter names follow Hugging Face's ELECTRA where it has the same head.

Shape letters: X any leading dimensions, H hidden size, E embedding size, V vocabulary, Y either V or X.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretrain.model import ops
from pretrain.model.distribution import Dense, Distribution
from pretrain.model.encoder import TiedEmbedding, initialize_matrix
from pretrain.model.sizes import EncoderConfig, EncoderSizes


class VocabularyTransform(nn.Module):
    """LayerNorm(GELU(dense(hidden))), [X, H] -> [X, E]: the output is the h of the paper's softmax(e(x)·h).

    Hugging Face's `ElectraGeneratorPredictions`.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = ops.GeluLinear(config.hidden_size, config.embedding_size)
        self.LayerNorm = ops.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        initialize_matrix(self.dense, config.initializer_range)

    def forward(self, hidden_XH: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(hidden_XH))


class VocabularyScores(nn.Module):
    """Scores e(x)·h, by default plus a bias per token, where e(x) are word embeddings; fp32 even in half precision."""

    def __init__(self, config: EncoderSizes, bias: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if bias else None

    def forward(self, projected_XE: Tensor, embedding_YE: Tensor, ids_X: Tensor | None = None) -> Tensor:
        """Returns the scores of every token, [X, V], from the whole table of embeddings, or of one token per row, [X],
        from its id and embedding, which makes the gradient cheap.
        """
        bias_V = None if self.bias is None else full_precision(self.bias)
        if ids_X is not None:
            scores_X = (full_precision(embedding_YE) * full_precision(projected_XE)).sum(-1)
            return scores_X if bias_V is None else scores_X + bias_V[ids_X]
        if bias_V is not None and bias_V.dtype == projected_XE.dtype:
            return ops.linear(projected_XE, embedding_YE, bias_V)
        if embedding_YE.dtype == torch.float16:  # a V100's tensor cores need a multiple of 8 rows
            padded_YE = nn.functional.pad(embedding_YE, (0, 0, 0, -len(embedding_YE) % 8))
            scores_XV = full_precision(ops.linear(projected_XE, padded_YE)[..., : len(embedding_YE)])
        else:
            scores_XV = full_precision(ops.linear(projected_XE, embedding_YE))
        return scores_XV if bias_V is None else scores_XV.add_(bias_V)  # the bias stays in fp32


class HeadScores(NamedTuple):
    """Scores e(x)·h + b of every token x, computed on demand."""

    hidden_XE: Tensor
    head: VocabularyScores
    embeddings: TiedEmbedding
    frozen: bool = False
    """No gradient reaches the embeddings."""

    @property
    def bias_V(self) -> Tensor | None:
        return None if self.head.bias is None else full_precision(self.head.bias)

    def all(self) -> Tensor:
        """Returns the scores of every token, [X, V]."""
        return self.embeddings(self.hidden_XE, self.head, self.frozen)

    def of(self, ids_X: Tensor) -> Tensor:
        """Returns the scores of one token per row, [X]."""
        return self.head(self.hidden_XE, self.embeddings(ids_X, frozen=self.frozen), ids_X)

    def softmax(self) -> Distribution:
        """Returns the softmax of all scores, in the form that this machine computes fastest."""
        table_VE = self.embeddings.weight.detach() if self.frozen else self.embeddings.weight
        return ops.softmax(self.hidden_XE, table_VE, self.bias_V) or Dense.softmax(self.all())


class DiscriminatorHead(nn.Module):
    """dense(GELU(dense(h))), [X, H] -> logit d [X] in fp32; d > 0 means "replaced" (Hugging Face's
    `ElectraDiscriminatorPredictions`).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = ops.GeluLinear(config.hidden_size, config.hidden_size)
        self.dense_prediction = ops.Linear(config.hidden_size, 1)
        for layer in (self.dense, self.dense_prediction):
            initialize_matrix(layer, config.initializer_range)

    def forward(self, hidden_XH: Tensor) -> Tensor:
        return full_precision(self.dense_prediction(self.dense(hidden_XH)).squeeze(-1))


def full_precision(values: Tensor) -> Tensor:
    """Converts half precision to fp32; wider types stay, so that a float64 model computes in float64 throughout."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
