"""Batches of random word pieces, for benchmarks that need no text."""

from pretrain.data.batches import Batch
from pretrain.data.batches import random_batch as of_vocabulary

VOCABULARY, MASK = 30_522, 103  # size and [MASK] id of BERT's uncased vocabulary, which the paper uses


def random_batch(batch_size: int, seq_length: int, vocabulary: int = VOCABULARY) -> Batch:
    """Returns full-length sequences of random ids with 15% of the positions masked."""
    return of_vocabulary(batch_size, seq_length, vocabulary)
