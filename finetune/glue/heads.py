"""The heads for classification and regression on [CLS].

`electra` is google-research/electra's: dropout and one dense layer. `hf` is Hugging Face's `ElectraClassificationHead`,
for comparisons: a dense layer with GELU comes first, with dropout of its own.
Shape letters: B batch, L length, H hidden size, C outputs.
"""

from collections import OrderedDict
from typing import Literal

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
