"""The head for SQuAD: scores starts, ends given a start, and whether there is an answer.

google-research/electra (`finetune/qa/qa_tasks.py`) uses XLNet's head with other settings (`presets.HEAD_KINDS`).
Shape letters: B batch, L length, H hidden size, K beam, X size of a hidden layer.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.presets import HeadKind
from finetune.running.job import Batch
from pretrain.model import ops
from pretrain.model.encoder import Encoder

UNANSWERABLE_WEIGHT = 0.5  # of the answerability loss: google-research/electra `configure_finetuning.py`, and XLNet


class SpanLogits(NamedTuple):
    """A batch's logits in training, in fp32; ends are scored given the true start."""

    start_BL: Tensor
    end_BL: Tensor
    unanswerable_B: Tensor


class SpanBeams(NamedTuple):
    """A batch's output in prediction: the likeliest starts, the likeliest ends for each, and log-probabilities."""

    start_BK: Tensor
    start_log_p_BK: Tensor
    end_BKK: Tensor
    end_log_p_BKK: Tensor
    unanswerable_B: Tensor


class PairScorer(nn.Module):
    """Maps pairs of states to a logit: dense layer over both, activation, optional LayerNorm, dropout, dense layer.

    The first layer's matrix is stored in two halves, so that pairing one state with many copies nothing.
    """

    def __init__(
        self, hidden_size: int, kind: HeadKind, *, layer_norm: bool = False, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        size = kind.hidden_size or hidden_size
        self.first = ops.Linear(hidden_size, size, bias=False)
        self.second = ops.Linear(hidden_size, size)
        self.activation = {"gelu": nn.GELU, "tanh": nn.Tanh}[kind.activation]()
        self.LayerNorm = ops.LayerNorm(size, eps=1e-12) if layer_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.logit = ops.Linear(size, 1, bias=bias)
        initialize(kind, self.first, self.second)
        initialize(kind, self.logit)

    def forward(self, first_H: Tensor, second_H: Tensor) -> Tensor:
        """Maps two tensors of states [..., H], whose leading dimensions broadcast, to logits [...] in fp32."""
        mixed_X = self.LayerNorm(self.activation(self.first(first_H) + self.second(second_H)))
        return self.logit(self.dropout(mixed_X)).squeeze(-1).float()


class SpanHead(nn.Module):
    """Scores starts, ends and answerability from the encoder's states."""

    def __init__(self, hidden_size: int, kind: HeadKind, dropout: float) -> None:
        super().__init__()
        self.beam = kind.beam
        self.start = ops.Linear(hidden_size, 1)
        initialize(kind, self.start)
        self.end = PairScorer(hidden_size, kind, layer_norm=kind.end_layer_norm)
        self.unanswerable = PairScorer(
            hidden_size, kind, dropout=dropout if kind.answerable_dropout else 0.0, bias=kind.answerable_bias
        )

    def forward(self, hidden_BLH: Tensor, allowed_BL: Tensor, true_start_B: Tensor | None) -> SpanLogits | SpanBeams:
        """Returns logits if given the true starts (training), else beams. Disallowed positions have probability 0."""
        start_BL = self.start(hidden_BLH).squeeze(-1).float().masked_fill(~allowed_BL, -math.inf)
        likely_BH = torch.einsum("bl,blh->bh", start_BL.softmax(1).to(hidden_BLH.dtype), hidden_BLH)
        unanswerable_B = self.unanswerable(hidden_BLH[:, 0], likely_BH)
        if true_start_B is not None:
            end_BL = self.ends(hidden_BLH, allowed_BL, true_start_B[:, None]).squeeze(1)
            return SpanLogits(start_BL, end_BL, unanswerable_B)
        beam = min(self.beam, hidden_BLH.shape[1])
        start_log_p_BK, start_BK = start_BL.log_softmax(1).topk(beam)
        end_log_p_BKK, end_BKK = self.ends(hidden_BLH, allowed_BL, start_BK).log_softmax(2).topk(beam)
        return SpanBeams(start_BK, start_log_p_BK, end_BKK, end_log_p_BKK, unanswerable_B)

    def ends(self, hidden_BLH: Tensor, allowed_BL: Tensor, start_BK: Tensor) -> Tensor:
        """Returns the logits [B, K, L] of all ends given each start."""
        state_BKH = torch.take_along_dim(hidden_BLH, start_BK[:, :, None], dim=1)
        return self.end(state_BKH[:, :, None], hidden_BLH[:, None]).masked_fill(~allowed_BL[:, None], -math.inf)


class QuestionAnswerer(nn.Module):
    """The model for SQuAD: encoder and span head; targets are those of `features.Windows`."""

    def __init__(self, encoder: Encoder, kind: HeadKind) -> None:
        super().__init__()
        self.electra = encoder
        self.last_separator = kind.last_separator
        self.head = SpanHead(encoder.config.hidden_size, kind, encoder.config.hidden_dropout_prob)

    def forward(self, batch: Batch) -> SpanLogits | SpanBeams:
        """Returns logits in training, beams in evaluation. Spans lie in the paragraph or are [CLS]."""
        allowed_BL = batch.token_type_ids_BL.bool()
        if not self.last_separator:
            allowed_BL = allowed_BL.scatter(1, batch.attention_mask_BL.sum(1, keepdim=True) - 1, False)
        allowed_BL[:, 0] = True
        hidden_BLH = self.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.head(hidden_BLH, allowed_BL, batch.target_B[:, 0].long() if self.training else None)


def span_losses(logits: SpanLogits, target_B3: Tensor) -> Tensor:
    """Returns each window's loss [B]: the mean of the start's and end's losses, plus half the answerability loss."""
    start_B, end_B, unanswerable_B = target_B3.unbind(1)
    start_loss_B = F.cross_entropy(logits.start_BL, start_B.long(), reduction="none")
    end_loss_B = F.cross_entropy(logits.end_BL, end_B.long(), reduction="none")
    null_loss_B = F.binary_cross_entropy_with_logits(logits.unanswerable_B, unanswerable_B, reduction="none")
    return (start_loss_B + end_loss_B) / 2 + UNANSWERABLE_WEIGHT * null_loss_B


def initialize(kind: HeadKind, *layers: nn.Linear) -> None:
    """Initializes the layers' weights as if their matrices were one, side by side; biases are 0."""
    limit = math.sqrt(6 / (sum(layer.in_features for layer in layers) + layers[0].out_features))
    for layer in layers:
        if kind.initializer_range:
            nn.init.normal_(layer.weight, std=kind.initializer_range)
        else:
            nn.init.uniform_(layer.weight, -limit, limit)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
