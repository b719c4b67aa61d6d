"""Several folders of shards as one order of samples: numbers only, no files.

Folders are mixed by weight. The number of a sample determines its folder, and how many samples of that folder precede
it (`ordering.dealt`): each folder has its own epochs, and nothing is stored.

Shape letters: B batch.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import isfinite

import numpy as np

from data_prep.manifest import ShardEntry
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.ordering import dealt, key_of, permuted
from pretrain.data.windows import ShardWindows

SHARE_UNIT = 1 << 30
"""Weights are converted to integers of about this sum, for exact arithmetic; the error is one sample in a billion."""
LARGEST_SHARES = 1 << 32
"""Largest sum of shares for exact arithmetic; with more sequences, shares are scaled to a sum of `SHARE_UNIT`."""


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
        for folder, start in enumerate(self._folder_starts):
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
        return np.array(self._folder_starts)[folder_B] + number_B % np.array(self.sizes)[folder_B]

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

    @property
    def _folder_starts(self) -> list[int]:
        """Index of each folder's first sequence."""
        return np.cumsum([0, *self.sizes[:-1]]).tolist()


def _whole_shares(names: Sequence[str], weights: Sequence[float]) -> list[int]:
    if len(weights) != len(names) or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise ConfigError(
            f"data_weights: got {' '.join(map(str, weights))}, expected a number above 0 for each folder of --data, "
            f"{len(names)} in all"
        )
    return [max(1, round(weight / sum(weights) * SHARE_UNIT)) for weight in weights]
