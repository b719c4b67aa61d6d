"""Masks of a sequence in an epoch: by default mask copy `epoch mod copies`, as it is in the shards.

Mask copies of one shuffle are disjoint. At another rate, a mask joins whole copies of one shuffle and a random subset
of the next, keyed by (seed, sequence, epoch). So every maskable token has the same probability. In short sequences a
shuffle has fewer copies; tokens in none of them come last.

Shape letters: B batch, L length, C mask copies, M candidates for a sequence's mask, V vocabulary.
"""

import numpy as np

from data_prep.masking import COPIES_PER_SHUFFLE, MASK_RATE, copies_of_a_shuffle, mask_size
from electra_sampler.foundation.ordering import key_of, uniforms
from pretrain.data.shards import Shards

SUBSET, TIE = 2, 3
"""Keys of the random numbers that choose a mask's last tokens, and among equal masks."""


def read_masked(
    shards: Shards,
    index_B: np.ndarray,
    epoch_B: np.ndarray,
    seed: int,
    rate: float = MASK_RATE,
    weight_V: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads a batch: padded ids [B, L], masks [B, L] with `mask_size(n, rate)` tokens of each sequence, lengths [B].

    With integer weights `weight_V`, takes the mask of largest total weight among those starting at each copy.

    Raises:
        LocalProblem: a sequence or its mask is damaged.
    """
    copies, copy_B = shards.manifest.mask_copies, epoch_B % shards.manifest.mask_copies
    if rate == MASK_RATE and weight_V is None:
        return shards.read(index_B, copy_B)
    copy_CB = np.repeat(np.arange(copies)[:, None], len(index_B), axis=1)
    ids_BL, masked_MBL, lengths_B = shards.read(index_B, copy_CB)
    if rate != MASK_RATE:
        special = shards.manifest.special_tokens
        maskable_BL = ~np.isin(ids_BL, (special.pad, special.cls, special.sep, special.mask))
        uniforms_BL = uniforms(key_of(seed, SUBSET), index_B, epoch_B, np.arange(ids_BL.shape[1])[None])
        order_BL = np.where(maskable_BL, uniforms_BL, np.inf)
        starts = copy_B[None] if weight_V is None else copy_CB
        masked_MBL = np.stack([_resized(masked_MBL, start_B, order_BL, lengths_B, rate) for start_B in starts])
    if weight_V is None:
        return ids_BL, masked_MBL[0], lengths_B
    weight_MB = np.where(masked_MBL, weight_V[ids_BL], 0).sum(axis=-1)
    tie_BM = uniforms(key_of(seed, TIE), index_B, epoch_B, np.arange(copies)[None])
    chosen_B = np.lexsort((tie_BM.T, weight_MB), axis=0)[-1]
    return ids_BL, masked_MBL[chosen_B, np.arange(len(index_B))], lengths_B


def _resized(
    masked_CBL: np.ndarray, start_B: np.ndarray, order_BL: np.ndarray, lengths_B: np.ndarray, rate: float
) -> np.ndarray:
    """Returns masks [B, L] from copy `start_B` and those after it in its shuffle, in turn; `order_BL` is the order
    within a copy: in [0, 1), or infinite for a token that may not be masked.
    """
    sizes_B = mask_size(lengths_B)
    together_B = np.maximum(copies_of_a_shuffle(np.isfinite(order_BL).sum(axis=1), sizes_B), 1)
    copy_C1 = np.arange(len(masked_CBL))[:, None]
    block_CB, block_B = (copy // COPIES_PER_SHUFFLE for copy in (copy_C1, start_B))
    shuffle_CB, shuffle_B = (copy % COPIES_PER_SHUFFLE // together_B for copy in (copy_C1, start_B))
    is_of_shuffle_CB = (block_CB == block_B) & (shuffle_CB == shuffle_B)
    turn_CB = np.where(is_of_shuffle_CB, (copy_C1 - start_B) % together_B, COPIES_PER_SHUFFLE)
    turn_BL = np.where(masked_CBL, turn_CB[..., None], COPIES_PER_SHUFFLE).min(axis=0)
    rank_BL = (turn_BL + order_BL).argsort(axis=1, kind="stable").argsort(axis=1)
    return rank_BL < mask_size(lengths_B, rate)[:, None]
