"""The heads for classification and regression on [CLS].

`electra` is google-research/electra's: dropout and one dense layer. `hf` is Hugging Face's `ElectraClassificationHead`,
for comparisons: a dense layer with GELU and its own dropout comes first.
Shape letters: B batch, L length, H hidden size, C outputs, X rows of zeros.
"""

from collections import OrderedDict
from typing import Literal

import torch
from torch import Tensor, nn

from finetune.tokens import Batch
from pretrain.model import ops
from pretrain.model.encoder import ElectraEncoder


class SequenceClassifier(nn.Module):
    """Encoder and task head: maps a batch to outputs [B, C] in fp32, one column per class or one score."""

    def __init__(self, encoder: ElectraEncoder, num_outputs: int, head: Literal["electra", "hf"] = "electra") -> None:
        super().__init__()
        size, dropout = encoder.config.hidden_size, encoder.config.hidden_dropout_prob
        self.electra = encoder
        self.dropout = nn.Dropout(dropout)
        if head == "hf":
            dense, out_proj = ops.Linear(size, size), ops.Linear(size, num_outputs)
            for layer in (dense, out_proj):
                nn.init.normal_(layer.weight, std=encoder.config.initializer_range)
                nn.init.zeros_(layer.bias)
            layers = {"dense": dense, "activation": nn.GELU(), "dropout": nn.Dropout(dropout), "out_proj": out_proj}
            self.head: nn.Module = nn.Sequential(OrderedDict(layers))  # parameters are named as Hugging Face's
        else:
            self.head = ops.Linear(size, num_outputs)
            nn.init.xavier_uniform_(self.head.weight)  # TensorFlow's default, which google-research/electra keeps
            nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        hidden_BLH = self.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.head(self.dropout(hidden_BLH[:, 0])).float()


def as_two_layers(weight_CH: Tensor, bias_C: Tensor) -> dict[str, Tensor]:
    """Returns weights of the head `hf` that compute one dense layer, since GELU(z) - GELU(-z) = z.

    The first layer computes z and -z of every output, padded with zeros; the second takes their difference.
    """
    outputs, size = weight_CH.shape
    rest_XH, rest_X = weight_CH.new_zeros(size - 2 * outputs, size), bias_C.new_zeros(size - 2 * outputs)
    one_CC = torch.eye(outputs, device=weight_CH.device)
    return {
        "dense.weight": torch.cat([weight_CH, -weight_CH, rest_XH]),
        "dense.bias": torch.cat([bias_C, -bias_C, rest_X]),
        "out_proj.weight": torch.cat([one_CC, -one_CC, rest_XH[:, :outputs].T], dim=1),
        "out_proj.bias": torch.zeros_like(bias_C),
    }
