"""Examples of any task as token ids, their order in training, and padded batches.

Shape letters: B batch, L length.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from foundation.ordering import key_of, permuted
from pretrain.job.processes import World

IGNORED = -100
"""The target of a position that has none, as in Hugging Face's and PyTorch's losses."""
_ORDER_OF_BATCHES = 2
"""Separates the draws for the order of batches from the draws for the order of examples."""


class Features(NamedTuple):
    """Tokenized examples: ids and segments of [CLS] A [SEP] (B [SEP]), and the targets, one or several per example."""

    input_ids: list[Any]
    token_type_ids: list[Any]
    targets: list[Any]


class Batch(NamedTuple):
    """A padded batch; `weight_B` is 1, or 0 for an example that only pads the batch and is ignored.

    `target_B` is [B] with one target per example, [B, targets] with several, [B, L] with one per position.
    """

    input_ids_BL: Tensor
    attention_mask_BL: Tensor
    token_type_ids_BL: Tensor
    target_B: Tensor
    weight_B: Tensor


def collate(features: Features, indices: Sequence[int] | np.ndarray, pad_id: int, device: torch.device) -> Batch:
    """Returns the examples `indices` as a batch, padded to the longest; without indices, one example of weight 0."""
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
    """Returns index arrays of `batch_size` examples, the remainder in a smaller one; each example is in exactly one.

    Stateless: they follow from (seed, epoch). Examples are put in a random order, sorted by length within pools of
    `pool` batches, cut into batches, and the batches put in a random order; so a batch needs little padding, and which
    examples share one still changes from epoch to epoch. A pool of 1 leaves the batches random.
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
    """Yields index arrays of this rank's batches of `size`, sorted by length; each example is on exactly one rank.

    Every rank has equally many, some maybe empty: under ZeRO-3 every forward is collective.
    """
    order = np.argsort([len(ids) for ids in features.input_ids], kind="stable")
    step = size * world.world_size
    for start in range(0, len(order), step):
        yield order[start + world.rank : start + step : world.world_size]
