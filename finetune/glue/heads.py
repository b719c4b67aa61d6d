"""The heads for classification and regression on [CLS].

`electra` is google-research/electra's: dropout and one dense layer. `hf` is Hugging Face's `ElectraClassificationHead`,
for comparisons: a dense layer with GELU comes first, with dropout of its own.
Shape letters: B batch, L length, H hidden size, C outputs.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from finetune.tokens.features import Batch
from pretrain.model import ops
from pretrain.model.encoder import ElectraEncoder


class SequenceClassifier(nn.Module):
    """Encoder and task head: batch -> outputs [B, C] in fp32."""

    def __init__(self, encoder: ElectraEncoder, num_outputs: int, head: Literal["electra", "hf"] = "electra") -> None:
        super().__init__()
        self.electra = encoder
        self.dropout = nn.Dropout(encoder.config.hidden_dropout_prob)
        if head == "hf":
            self.head: nn.Module = HuggingFaceHead(encoder, num_outputs)
        else:
            self.head = ops.Linear(encoder.config.hidden_size, num_outputs)
            nn.init.xavier_uniform_(self.head.weight)  # TensorFlow's default, which google-research/electra leaves
            nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        hidden_BLH = self.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.head(self.dropout(hidden_BLH[:, 0])).float()


class HuggingFaceHead(nn.Module):
    """What follows the first dropout in `ElectraClassificationHead`, under the names its parameters have there."""

    def __init__(self, encoder: ElectraEncoder, num_outputs: int) -> None:
        super().__init__()
        size = encoder.config.hidden_size
        self.dense = ops.Linear(size, size)
        self.dropout = nn.Dropout(encoder.config.hidden_dropout_prob)
        self.out_proj = ops.Linear(size, num_outputs)
        for layer in (self.dense, self.out_proj):
            nn.init.normal_(layer.weight, std=encoder.config.initializer_range)
            nn.init.zeros_(layer.bias)

    def forward(self, hidden_BH: Tensor) -> Tensor:
        return self.out_proj(self.dropout(F.gelu(self.dense(hidden_BH))))


def example_losses(output_BC: Tensor, target_B: Tensor) -> Tensor:
    """Loss of each example [B]: squared error for one output, cross-entropy for several."""
    if output_BC.shape[1] == 1:
        return (output_BC[:, 0] - target_B).square()
    return F.cross_entropy(output_BC, target_B.long(), reduction="none")


def predictions(output_BC: Tensor) -> Tensor:
    """What the outputs say [B]: the score, or the number of the likeliest class."""
    return output_BC[:, 0] if output_BC.shape[1] == 1 else output_BC.argmax(dim=1)
