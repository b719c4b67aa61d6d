"""The order `windows`: shards permuted per epoch, sequences permuted within each window of consecutive shards.

At any time a run reads from one window of each folder, so only that window and the next have to be on this machine. The
order follows from (seed, epoch) by keyed bijections; finding a sample's place takes O(1) time, and nothing is stored.

Shape letters: B samples, S shards.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from electra_sampler.foundation.ordering import key_of, permuted

SHARDS, WINDOW = 0, 1
"""Keys of the permutations of shards, and of sequences within a window."""


class ShardWindows:
    """The order `windows` of one folder's sequences.

    In each epoch the shards are shuffled and cut into windows, and then the sequences of each window are shuffled.

    Args:
        sequences: number of sequences in each shard. window: shards per window.
    """

    def __init__(self, sequences: Sequence[int], window: int, seed: int) -> None:
        self._sequences_S = np.array(sequences, dtype=np.int64)
        self._first_S = np.cumsum(self._sequences_S) - self._sequences_S
        self._size, self._window, self._seed = int(self._sequences_S.sum()), window, seed
        self._order = lru_cache(maxsize=4)(self._draw)

    def _draw(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the epoch's shards in order, and the place where each begins."""
        places_S = np.arange(len(self._sequences_S))
        shard_S = permuted(places_S, len(places_S), key_of(self._seed, SHARDS), epoch)
        sequences_S = self._sequences_S[shard_S]
        return shard_S, np.cumsum(sequences_S) - sequences_S

    def sequences(self, place_B: np.ndarray, epoch: int) -> np.ndarray:
        """Returns the folder's sequence at each of these places in the epoch's order, int64 [B]."""
        shard_S, start_S = self._order(epoch)
        edges = np.append(start_S[:: self._window], self._size)
        window_B = np.searchsorted(edges, place_B, side="right") - 1
        within_B = np.empty_like(place_B)
        for window in np.unique(window_B):
            rows, (start, end) = window_B == window, edges[window : window + 2]
            key = key_of(self._seed, WINDOW, int(window))
            within_B[rows] = start + permuted(place_B[rows] - start, int(end - start), key, epoch)
        slot_B = np.searchsorted(start_S, within_B, side="right") - 1
        return self._first_S[shard_S[slot_B]] + within_B - start_S[slot_B]

    def needed(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """Returns the shards of the windows that hold samples `first` to `last`, and the shards of the next window."""
        here: dict[int, None] = {}
        position, end = self._window_of(first), self._window_of(last)
        while position <= end:
            here |= dict.fromkeys(self._shards_of(*position))
            epoch, window = position
            is_last = (window + 1) * self._window >= len(self._sequences_S)
            position = (epoch + 1, 0) if is_last else (epoch, window + 1)
        return list(here), [shard for shard in self._shards_of(*position) if shard not in here]

    def _window_of(self, number: int) -> tuple[int, int]:
        """Returns epoch and window of the folder's sample with this number."""
        epoch, place = divmod(number, self._size)
        _, start_S = self._order(epoch)
        return epoch, int(np.searchsorted(start_S[:: self._window], place, side="right")) - 1

    def _shards_of(self, epoch: int, window: int) -> list[int]:
        shard_S = self._order(epoch)[0][window * self._window : (window + 1) * self._window]
        return [int(shard) for shard in shard_S if self._sequences_S[shard]]
