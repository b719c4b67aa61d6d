"""The order of training: which examples make a batch, and when it is learned from.

Stateless: the batches of an epoch follow from (seed, epoch). Examples are put in a random order, sorted by length
within pools of several batches, cut into batches, and the batches put in a random order; so a batch needs little
padding, and which examples meet in it still changes from epoch to epoch.
"""

from collections.abc import Sequence

import numpy as np

from foundation.ordering import key_of, permuted

_ORDER_OF_BATCHES = 2
"""Sets its draws apart from those of the examples' order."""


def epoch_batches(lengths: Sequence[int], batch_size: int, pool: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Index arrays of `batch_size` examples, one of them maybe smaller; together they hold each example once.

    `pool` batches are sorted by length together; 1 leaves the batches random.
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
