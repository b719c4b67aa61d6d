"""Order and randomness without state: samples dealt to parts, a bijection for their order, one uniform a position."""

from collections.abc import Sequence

import numpy as np

FEISTEL_ROUNDS = 6
"""Four rounds of a random function give a strong pseudorandom permutation (Luby and Rackoff 1988); two are spare."""


def mixed(values: np.ndarray, key: int | np.ndarray) -> np.ndarray:
    """A well-mixed uint64 of each (value, key): the finalizer of splitmix64 (Steele et al. 2014), modulo 2^64."""
    with np.errstate(over="ignore"):
        z = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(key).astype(np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def key_of(*parts: int) -> int:
    """One 64-bit key from several numbers, order-sensitive."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mixed(np.array([part], dtype=np.uint64), key)
    return int(key[0])


def dealt(samples: np.ndarray, shares: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Which of several parts each sample comes from, and how many samples before it came from that part; both int64.

    Nothing is drawn: of the first s samples, part 0 has floor(s x shares[0] / sum(shares)), and the others share what
    it leaves in the same way, so no part strays by more than a few samples. `samples` are below 2^33, and `shares`
    whole numbers of a sum up to 2^31: their products fit into 64 bits.
    """
    part = np.zeros(len(samples), dtype=np.int64)
    number = np.zeros(len(samples), dtype=np.int64)
    left = samples.astype(np.uint64)  # the sample's number among those that the parts so far have left
    open_rows = np.ones(len(samples), dtype=bool)
    for index, share in enumerate(shares):
        whole = np.uint64(sum(shares[index:]))
        before = left * np.uint64(share) // whole
        own = open_rows & ((left + np.uint64(1)) * np.uint64(share) // whole > before)
        part[own], number[own] = index, before[own]
        open_rows &= ~own
        left -= before
    return part, number


def permuted(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Where each of `places` (in [0, size)) goes under the bijection of (seed, epoch); int64.

    A balanced Feistel network on the smallest even number of bits that holds `size`; values that land outside walk
    on along their cycle until they are inside, so the restriction is a bijection too.
    """
    half = max(1, -(-max(1, (size - 1).bit_length()) // 2))
    keys = [key_of(seed, epoch, number) for number in range(FEISTEL_ROUNDS)]
    result = _feistel(places.astype(np.uint64), half, keys)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], half, keys)
    return result.astype(np.int64)


def _feistel(values: np.ndarray, half: int, keys: list[int]) -> np.ndarray:
    low_bits = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & low_bits
    for key in keys:
        left, right = right, left ^ (mixed(right, key) & low_bits)
    return (left << np.uint64(half)) | right


def uniforms(seed: int, sequence_B: np.ndarray, epoch_B: np.ndarray, position_BK: np.ndarray) -> np.ndarray:
    """fp32 in (0, 1), keyed by (seed, sequence, epoch, position): the same draw on any cluster.

    Odd multiples of 2^-24, all exact in fp32. Neither end is reached: at 0 the inverse CDF would pick the first token
    of any weight, however small, about once in 2^24 draws.
    """
    key_B = mixed(epoch_B, mixed(sequence_B, key_of(seed)))
    bits_BK = mixed(position_BK, key_B[:, None]) >> np.uint64(41)
    return (bits_BK.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
