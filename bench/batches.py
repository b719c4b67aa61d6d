"""Batches of random word pieces, for benchmarks that need no text."""

import torch

from data_prep.masking import mask_size
from pretrain.data.batches import Batch

VOCABULARY, MASK = 30_522, 103  # size and [MASK] id of BERT's uncased vocabulary, which the paper uses


def random_batch(batch_size: int, seq_length: int, vocabulary: int = VOCABULARY) -> Batch:
    """Returns full-length sequences of random ids with 15% of the positions masked."""
    shape, slots = (batch_size, seq_length), int(mask_size(seq_length))
    positions_BK = torch.rand(shape).argsort(1)[:, :slots].sort().values
    return Batch(
        input_ids_BL=torch.randint(MASK + 1, vocabulary, shape),
        attention_mask_BL=torch.ones(shape, dtype=torch.bool),
        token_type_ids_BL=torch.zeros(shape, dtype=torch.int64),
        masked_positions_BK=positions_BK,
        masked_valid_BK=torch.ones_like(positions_BK, dtype=torch.bool),
        uniforms_BK=torch.rand(positions_BK.shape),
        keep_uniforms_BK=torch.ones(positions_BK.shape),
        masked_count=float(positions_BK.numel()),
        token_count=float(batch_size * seq_length),
    )
