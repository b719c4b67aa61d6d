"""The head for token classification: Hugging Face's `ElectraForTokenClassification`, dropout and one linear layer.

Shape letters: B batch, L length, H hidden size, C classes.
"""

from torch import Tensor, nn

from finetune.tokens import Batch
from pretrain.model import ops
from pretrain.model.encoder import ElectraEncoder


class TokenClassifier(nn.Module):
    """Encoder and task head: maps a batch to logits [B, L, C] in fp32."""

    def __init__(self, encoder: ElectraEncoder, num_classes: int) -> None:
        super().__init__()
        self.electra = encoder
        self.dropout = nn.Dropout(encoder.config.hidden_dropout_prob)
        self.head = ops.Linear(encoder.config.hidden_size, num_classes)
        nn.init.normal_(self.head.weight, std=encoder.config.initializer_range)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        hidden_BLH = self.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.head(self.dropout(hidden_BLH)).float()
