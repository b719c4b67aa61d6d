"""The classification and regression head, as google-research/electra's: dropout and one dense layer on [CLS].

(Hugging Face's `ElectraClassificationHead` has a second dense layer and a GELU.)
Shape letters: B batch, L length, H hidden size, C outputs.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from finetune.features import Batch
from pretrain.encoder import ElectraEncoder


class SequenceClassifier(nn.Module):
    """Encoder and task head: batch -> outputs [B, C] in fp32."""

    def __init__(self, encoder: ElectraEncoder, num_outputs: int) -> None:
        super().__init__()
        self.electra = encoder
        self.dropout = nn.Dropout(encoder.config.hidden_dropout_prob)
        self.head = nn.Linear(encoder.config.hidden_size, num_outputs)
        nn.init.xavier_uniform_(self.head.weight)  # TensorFlow's default, which google-research/electra leaves in place
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        hidden_BLH = self.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.head(self.dropout(hidden_BLH[:, 0])).float()


def example_losses(output_BC: Tensor, target_B: Tensor) -> Tensor:
    """Loss of each example [B]: squared error for one output, cross-entropy for several."""
    if output_BC.shape[1] == 1:
        return (output_BC[:, 0] - target_B).square()
    return F.cross_entropy(output_BC, target_B.long(), reduction="none")


def predictions(output_BC: Tensor) -> Tensor:
    """What the outputs say [B]: the score, or the number of the likeliest class."""
    return output_BC[:, 0] if output_BC.shape[1] == 1 else output_BC.argmax(dim=1)
