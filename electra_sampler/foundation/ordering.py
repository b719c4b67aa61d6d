"""Stateless randomness: divides samples among parts, permutes them, and draws a uniform number per position."""

from collections.abc import Sequence

import numpy as np

FEISTEL_ROUNDS = 6
"""Four rounds of a random function give a strong pseudorandom permutation (Luby and Rackoff 1988); two are added."""


def mixed(values: np.ndarray, key: int | np.ndarray) -> np.ndarray:
    """Hashes each pair (value, key) to a uint64 by the finalizer of splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        return scrambled(values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(key).astype(np.uint64))


def scrambled(z: np.ndarray) -> np.ndarray:
    """Returns the finalizer of splitmix64 of uint64 numbers: every bit depends on all bits of the given number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key_of(*parts: int) -> int:
    """Returns one 64-bit key for several numbers, whose order matters."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mixed(np.array([part], dtype=np.uint64), key)
    return int(key[0])


def dealt(samples: np.ndarray, shares: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Deals samples to parts in proportion to `shares`; returns each sample's part and its index there, both int64.

    The deal is deterministic: of the first s samples, part 0 gets floor(s x shares[0] / sum(shares)), and the others
    divide the rest in the same way, so every part stays within a few samples of its share. `shares` are integers with a
    sum of at most 2^32, so that products fit into 64 bits.
    """
    part = np.zeros(len(samples), dtype=np.int64)
    number = np.zeros(len(samples), dtype=np.int64)
    left = samples.astype(np.uint64)  # the sample's index among those left by the parts so far
    open_rows = np.ones(len(samples), dtype=bool)
    for index, share in enumerate(shares):
        whole = np.uint64(sum(shares[index:]))
        rounds, rest = np.divmod(left, whole)
        before_rest = rest * np.uint64(share) // whole
        before = rounds * np.uint64(share) + before_rest
        own = open_rows & ((rest + np.uint64(1)) * np.uint64(share) // whole > before_rest)
        part[own], number[own] = index, before[own]
        open_rows &= ~own
        left -= before
    return part, number


def permuted(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Maps each of `places`, in [0, size), by a bijection of [0, size) that is keyed by (seed, epoch); int64.

    It is a balanced Feistel network on the smallest even number of bits that holds `size`. Values that land outside are
    mapped again until they are inside (cycle walking), so the restriction is a bijection too.
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
    """Uniform fp32 numbers in (0, 1), keyed by (seed, sequence, epoch, position): identical on any cluster.

    They are odd multiples of 2^-24, all exact in fp32, and never 0 or 1: at 0, about once in 2^24 draws, the inverse
    CDF would pick the first token however small its weight.
    """
    key_B = mixed(epoch_B, mixed(sequence_B, key_of(seed)))
    bits_BK = mixed(position_BK, key_B[:, None]) >> np.uint64(41)
    return (bits_BK.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
