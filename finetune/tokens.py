"""Examples of any task as token ids, their order in training, and padded batches.

Shape letters: B batch, L length.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra_sampler.foundation.ordering import key_of, permuted
from pretrain.job.processes import World

IGNORED = -100
"""The target of positions to ignore, as in Hugging Face's and PyTorch's losses."""
_ORDER_OF_BATCHES = 2
"""Key of the random order of batches, so that it is independent of the order of examples."""


class Features(NamedTuple):
    """Tokenized examples: ids and segments of [CLS] A [SEP] (B [SEP]), and one or several targets per example."""

    input_ids: list[Any]
    token_type_ids: list[Any]
    targets: list[Any]


class Batch(NamedTuple):
    """A padded batch; `weight_B` is 1, or 0 for a filler that is ignored (see `collate`).

    `target_B` is [B] with one target per example, [B, targets] with several, [B, L] with one per position.
    """

    input_ids_BL: Tensor
    attention_mask_BL: Tensor
    token_type_ids_BL: Tensor
    target_B: Tensor
    weight_B: Tensor


def collate(features: Features, indices: Sequence[int] | np.ndarray, pad_id: int, device: torch.device) -> Batch:
    """Returns the examples `indices` as a batch, padded to the longest; without any, a single filler of weight 0."""
    chosen = indices if len(indices) else [0]
    ids = [torch.as_tensor(features.input_ids[i], dtype=torch.long) for i in chosen]
    segments = [torch.as_tensor(features.token_type_ids[i], dtype=torch.long) for i in chosen]
    targets = [torch.as_tensor(features.targets[i], dtype=torch.float).reshape(-1) for i in chosen]
    target_BX = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=IGNORED)
    lengths_B = torch.tensor([len(row) for row in ids])
    input_ids_BL = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=pad_id)
    batch = Batch(
        input_ids_BL,
        torch.arange(input_ids_BL.shape[1])[None, :] < lengths_B[:, None],
        torch.nn.utils.rnn.pad_sequence(segments, batch_first=True),
        target_BX if np.ndim(features.targets[0]) else target_BX[:, 0],
        torch.full((len(chosen),), float(len(indices) > 0)),
    )
    return Batch(*(tensor.to(device, non_blocking=True) for tensor in batch))


def epoch_batches(lengths: Sequence[int], batch_size: int, pool: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Returns the batches of an epoch as arrays of example indices; a remainder makes a smaller batch.

    They follow from (seed, epoch) alone. Examples are shuffled, sorted by length within pools of `pool` batches, and
    cut into batches, which are then shuffled. So batches need little padding, yet their composition changes from epoch
    to epoch. With a pool of 1, batches are random.
    """
    size = len(lengths)
    order = permuted(np.arange(size), size, seed, epoch)
    length_of = np.asarray(lengths)
    batches = []
    for start in range(0, size, pool * batch_size):
        chosen = order[start : start + pool * batch_size]
        chosen = chosen[np.argsort(length_of[chosen], kind="stable")]
        batches += np.split(chosen, range(batch_size, len(chosen), batch_size))
    places = permuted(np.arange(len(batches)), len(batches), key_of(seed, _ORDER_OF_BATCHES), epoch)
    return [batches[place] for place in places]


def shares(features: Features, world: World, size: int) -> Iterator[np.ndarray]:
    """Yields this rank's batches of up to `size` examples, sorted by length, as arrays of indices.

    Each example is on exactly one rank. All ranks have equally many batches, perhaps with empty ones, since every
    forward is collective under ZeRO-3.
    """
    order = np.argsort([len(ids) for ids in features.input_ids], kind="stable")
    step = size * world.world_size
    for start in range(0, len(order), step):
        yield order[start + world.rank : start + step : world.world_size]
