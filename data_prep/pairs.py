"""Sets of pairs of numbers, larger than memory, on disk: sorted files that are cut into ranges of the first number.

Workers write one file each, and read some ranges each, from all files. So every pair is read once, for any number of
ranges.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np


class Pairs(NamedTuple):
    """A set of pairs in a number of `files`: each has the offset of every range, then the pairs, sorted."""

    folder: Path
    name: str
    files: int
    bounds: np.ndarray
    """The first number of each range."""

    def write(self, number: int, pairs: np.ndarray) -> None:
        """Writes file `number`. The pairs, an array of two columns, are sorted by the first."""
        offsets = np.append(np.searchsorted(pairs[:, 0], self.bounds), len(pairs)).astype(np.uint64)
        with self.path(number).open("wb") as file:  # not flushed: every run of a build writes it again
            file.write(offsets.data)  # unlike `tofile`, says why it fails
            file.write(pairs.tobytes())

    def read(self, ranges: range) -> np.ndarray:
        """Returns the pairs of consecutive ranges, of the first file, the second, and so on."""
        found = [np.empty(0, np.uint64)]
        for path in map(self.path, range(self.files)):
            offsets = np.fromfile(path, np.uint64, len(ranges) + 1, offset=8 * ranges.start)
            first, last = int(offsets[0]), int(offsets[-1])
            if first < last:
                place = 8 * (len(self.bounds) + 1) + 16 * first
                found.append(np.fromfile(path, np.uint64, 2 * (last - first), offset=place))
        return np.concatenate(found).reshape(-1, 2)

    def path(self, number: int) -> Path:
        """The path of file `number`."""
        return self.folder / f"{self.name}-{number:05d}.bin"


def matched(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Matches pairs of a key and a document, the documents in ascending order.

    Returns the first pair of each key, sorted by key; and for each other pair, its document and the key's first one,
    sorted by document.
    """
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    is_first = _starts(pairs[:, 0])
    firsts = pairs[is_first]
    later = np.stack((pairs[:, 1], firsts[np.cumsum(is_first) - 1, 1]), axis=1)[~is_first]
    return firsts, later[np.argsort(later[:, 0])]


def distinct(pairs: np.ndarray) -> np.ndarray:
    """Returns the pairs sorted, by their first and then their second number, each once."""
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return pairs[_starts(pairs[:, 0]) | _starts(pairs[:, 1])]


def relinked(links: np.ndarray) -> tuple[np.ndarray, bool]:
    """Links each number only to the smallest of the numbers below it, and these to that one.

    Which numbers are connected stays the same. Done again and again, this leaves every number with one link, except the
    smallest of each group of connected numbers, which has none (the small-star step of Kiveris et al. 2014, Connected
    Components in MapReduce and Beyond; with random numbers, it needs no large-star step).

    Args:
        links: all pairs (number, smaller number) of some numbers, sorted and distinct.

    Returns:
        The new links, sorted and distinct; whether they are the same as before.
    """
    is_first = _starts(links[:, 0])
    kept = links[is_first]
    smallest = kept[np.cumsum(is_first) - 1, 1]
    others = np.stack((links[:, 1], smallest), axis=1)[~is_first]
    return distinct(np.concatenate((kept, others))), not len(others)


def _starts(numbers: np.ndarray) -> np.ndarray:
    """Marks the first of each run of equal numbers."""
    return np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]
