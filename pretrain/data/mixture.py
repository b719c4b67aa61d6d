"""Several folders of shards as one order of samples: numbers only, no files.

Folders are mixed by weight. The number of a sample determines its folder, and how many samples of that folder precede
it (`ordering.dealt`): each folder has its own epochs, and nothing is stored.

In the order `windows`, shards are permuted per epoch, and sequences within each window of consecutive shards. At any
time a run reads from one window of each folder, so only that window and the next have to be on this machine. The order
follows from (seed, epoch) by keyed bijections, and finding a sample's place takes O(1) time.

Shape letters: B samples, S shards.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import isfinite

import numpy as np

from data_prep.manifest import ShardEntry
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.ordering import dealt, key_of, permuted

SHARE_UNIT = 1 << 30
"""Weights are converted to integers of about this sum, for exact arithmetic; the error is one sample in a billion."""
LARGEST_SHARES = 1 << 32
"""Largest sum of shares for exact arithmetic; with more sequences, shares are scaled to a sum of `SHARE_UNIT`."""
SHARDS, WINDOW = 0, 1
"""Keys of the permutations of shards, and of sequences within a window."""


class Mixture:
    """The sequence that each sample reads; sequences are numbered across all folders.

    Args:
        names: the folders. shards: those of each folder, in order.
        weights: relative sampling weight of each folder; empty: its number of sequences.
        window: shards per window of the order `windows`; 0: a permutation of the whole folder.

    Attributes:
        sizes: number of sequences in each folder. shares: `weights`, or else `sizes`, as integers.

    Raises:
        ConfigError: a weight is not a positive number, or there is not one for each folder.
    """

    def __init__(
        self, names: Sequence[str], shards: Sequence[Sequence[ShardEntry]], weights: Sequence[float], window: int
    ) -> None:
        self._names, self.window = names, window
        self._counts = [[shard.sequences for shard in of_folder] for of_folder in shards]
        self._tokens = [sum(shard.tokens for shard in of_folder) for of_folder in shards]
        self._windows = lru_cache(lambda folder, seed: ShardWindows(self._counts[folder], window, seed))
        self.sizes = list(map(sum, self._counts))
        self._folder_starts = np.cumsum([0, *self.sizes[:-1]])  # index of each folder's first sequence
        exact = sum(self.sizes) <= LARGEST_SHARES
        self.shares = self.sizes if exact and not weights else _whole_shares(names, weights or self.sizes)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens in a sampled sequence."""
        return float(np.average(np.divide(self._tokens, self.sizes), weights=self.shares))

    def __iter__(self) -> Iterator[tuple[str, int, float]]:
        """Yields each folder with its number of sequences and its share of the samples."""
        return zip(self._names, self.sizes, (share / sum(self.shares) for share in self.shares), strict=True)

    def shuffled(self, sample_B: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns sequence and epoch of each of the samples, int64 [B]; a folder's epoch has each sequence once."""
        folder_B, number_B = dealt(sample_B, self.shares)
        epoch_B, place_B = np.divmod(number_B, np.array(self.sizes)[folder_B])
        index_B = np.empty_like(place_B)
        for folder, start in enumerate(self._folder_starts.tolist()):
            order_seed = key_of(seed, folder) if folder else seed  # folders of equal size get different orders
            for epoch in np.unique(epoch_B[folder_B == folder]):
                rows = (folder_B == folder) & (epoch_B == epoch)
                if self.window:
                    index_B[rows] = start + self._windows(folder, order_seed).sequences(place_B[rows], int(epoch))
                else:
                    index_B[rows] = start + permuted(place_B[rows], self.sizes[folder], order_seed, int(epoch))
        return index_B, epoch_B

    def in_turn(self, sample_B: np.ndarray) -> np.ndarray:
        """Returns the index of each sample's sequence if every folder is read in order, repeatedly; int64 [B]."""
        folder_B, number_B = dealt(sample_B, self.shares)
        return self._folder_starts[folder_B] + number_B % np.array(self.sizes)[folder_B]

    def needed(self, sample_B: np.ndarray, seed: int) -> dict[int, tuple[list[int], list[int]]]:
        """Returns, for each folder of these samples, given in ascending order, the shards that they may read, and those
        of the next window; shards are numbered across all folders.
        """
        folder_B, number_B = dealt(sample_B, self.shares)
        first_shards, found = np.cumsum([0, *map(len, self._counts)]).tolist(), {}
        for folder in np.unique(folder_B).tolist():
            numbers, first = number_B[folder_B == folder], first_shards[folder]
            if self.window:
                windows = self._windows(folder, key_of(seed, folder) if folder else seed)
                here, following = windows.needed(int(numbers[0]), int(numbers[-1]))
            else:
                here, following = [shard for shard, count in enumerate(self._counts[folder]) if count], []
            found[folder] = [first + shard for shard in here], [first + shard for shard in following]
        return found


def _whole_shares(names: Sequence[str], weights: Sequence[float]) -> list[int]:
    if len(weights) != len(names) or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise ConfigError(
            f"data_weights: got {' '.join(map(str, weights))}, expected a number above 0 for each folder of --data, "
            f"{len(names)} in all"
        )
    return [max(1, round(weight / sum(weights) * SHARE_UNIT)) for weight in weights]


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
