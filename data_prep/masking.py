"""Draws the positions to mask in each sequence: n-gram masks, in several copies, when the shards are built.

Words are cut into n-grams, the n-grams are shuffled and their tokens laid on a circle; from a uniform start,
each disjoint window of k = ceil(0.15 n) tokens is one mask copy. By symmetry, each of the m tokens that may be masked
has exactly the same probability k / m, and at most the two n-grams at a window's ends are cut.

Array suffixes: S sequences, T tokens of the batch, M tokens that may be masked, W words, G n-grams,
P segments, N windows (one mask copy each), U tokens of the windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

MASK_RATE = 0.15  # of a mask copy
COPIES_PER_SHUFFLE = 6  # 6 x 15% = 90% of the circle; a seventh window would overlap the first
_BATCH = 512
_LARGEST_BATCH = 1 << 28  # mask bits of a batch; each takes a byte while drawing
_STARTS_WORD, _SPECIAL = np.uint8(0), np.uint8(2)  # kinds of token; 1 continues a word
# a sort key is 48 random bits and the number of the n-gram in its sequence, which makes every key of it distinct
_NUMBER, _LAST = np.uint64((1 << 16) - 1), np.uint64((1 << 64) - 1)

Length = TypeVar("Length", int, np.ndarray)


def mask_size(length: Length, rate: float = MASK_RATE) -> Length:
    """Number of tokens to mask: exactly ceil(rate n), n including [CLS] and [SEP] as in google-research/electra.

    It is at most n - 3, which a sequence with three special tokens can give, and at least 1: in short sequences, rates
    above 1/4 may mask fewer. `rate` is a number of thousandths.
    """
    return np.minimum((round(1000 * rate) * length + 999) // 1000, np.maximum(length - 3, 1))


def copies_of_a_shuffle(maskable: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Most mask copies of one shuffle: disjoint windows of `size` tokens that fit on a circle of `maskable` ones."""
    return np.minimum(maskable // size, COPIES_PER_SHUFFLE)


def bytes_per_copy(seq_length: int) -> int:
    """Size of one mask copy's bitmap: position p is bit p % 8 of byte p // 8."""
    return (seq_length + 7) // 8


@dataclass(frozen=True)
class Masker:
    """Draws the masks of sequences.

    Args:
        seq_length: the most tokens a sequence can have; a bitmap has a bit for each.
        copies: bitmaps per sequence, each of which holds one mask.
        ngram: probabilities of n-grams of 1, 2, ... words; they sum to 1.
        special: bool [vocabulary]: ids that are never masked and that end an n-gram.
        continuation: bool [vocabulary]: `##` ids, which belong to the word before them.
    """

    seq_length: int
    copies: int
    ngram: Sequence[float]
    special: np.ndarray
    continuation: np.ndarray

    def draw(self, ids: np.ndarray, lengths: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws masks for the sequences concatenated in `ids`.

        Returns:
            Bitmaps, uint8 [S, copies * bytes_per_copy]; how often an n-gram of 1, 2, ... words was drawn,
            int64.
        """
        ends, width = np.cumsum(lengths), bytes_per_copy(self.seq_length) * 8
        bitmaps = np.zeros((len(lengths), self.copies * width // 8), np.uint8)
        drawn = np.zeros(len(self.ngram), np.int64)
        at_once = max(1, min(_BATCH, _LARGEST_BATCH // (self.copies * width)))
        for first in range(0, len(lengths), at_once):
            part = slice(first, first + at_once)
            batch = _Batch(ids[ends[first] - lengths[first] : ends[part][-1]], lengths[part], self)
            sequences = len(lengths[part])
            masked = np.zeros(sequences * self.copies * width, np.uint8)  # [S, copies, positions], flat
            for copy in range(0, self.copies, COPIES_PER_SHUFFLE):
                start_S = (np.arange(sequences) * self.copies + copy) * width
                copies_S = np.full(sequences, min(COPIES_PER_SHUFFLE, self.copies - copy))
                batch.mask(start_S, copies_S, random, drawn, masked)
            bitmaps[part] = np.packbits(masked, bitorder="little").reshape(sequences, -1)
        return bitmaps, drawn


class _Batch:
    """The maskable tokens of a batch of sequences, and their grouping into words and segments.

    Positions and indices are int32: the arrays are large, and memory bandwidth is the bottleneck.
    """

    def __init__(self, ids_T: np.ndarray, lengths_S: np.ndarray, masker: Masker) -> None:
        self.ids_T, self.lengths_S, self.masker = ids_T, lengths_S, masker
        kind_T = np.where(masker.special, _SPECIAL, masker.continuation.view(np.uint8))[ids_T]
        token_M = np.flatnonzero(kind_T != _SPECIAL).astype(np.int32)
        segment_start_M = kind_T[token_M - 1] == _SPECIAL  # a sequence starts with [CLS], which is special
        first_T_S = np.cumsum(lengths_S, dtype=np.int32) - lengths_S
        # tokens to mask; tokens that may be masked, and the position of each in its sequence
        self.k_S = mask_size(lengths_S.astype(np.int64))
        self.m_S = np.diff(np.searchsorted(token_M, first_T_S), append=len(token_M))
        self.position_M = token_M - np.repeat(first_T_S, self.m_S)
        # index into M of each word's first token; index into W of each segment's first word (text between specials)
        self.word_M_W = np.flatnonzero((kind_T[token_M] == _STARTS_WORD) | segment_start_M).astype(np.int32)
        self.first_W_P = np.flatnonzero(segment_start_M[self.word_M_W]).astype(np.int32)

    def mask(
        self,
        start_S: np.ndarray,
        copies_S: np.ndarray,
        random: np.random.Generator,
        drawn: np.ndarray,
        masked: np.ndarray,
    ) -> None:
        """Draws `copies_S` masks per sequence and sets their positions to 1 in `masked`, from `start_S` on.

        A sequence that is too short for all its copies in one shuffle is shuffled again for the rest.
        """
        circle_M = self._shuffled_tokens(random, drawn)
        turn_S = random.integers(0, self.m_S)
        windows_S = np.minimum(copies_of_a_shuffle(self.m_S, self.k_S), copies_S)
        width = bytes_per_copy(self.masker.seq_length) * 8
        position_U = self.position_M[circle_M[self._used_places(turn_S, windows_S * self.k_S)]]
        row_N = np.repeat(np.arange(len(windows_S)), windows_S)  # N: windows of all sequences
        window_N = np.arange(len(row_N)) - np.repeat(np.cumsum(windows_S) - windows_S, windows_S)
        position_U += np.repeat((start_S[row_N] + window_N * width).astype(np.int32), self.k_S[row_N])
        masked[position_U] = 1
        again_S = windows_S < copies_S
        if again_S.any():
            kept = _Batch(self.ids_T[np.repeat(again_S, self.lengths_S)], self.lengths_S[again_S], self.masker)
            start_S = start_S + windows_S * width
            kept.mask(start_S[again_S], (copies_S - windows_S)[again_S], random, drawn, masked)

    def _used_places(self, turn_S: np.ndarray, used_S: np.ndarray) -> np.ndarray:
        """Returns the indices of the first `used_S` tokens of each sequence's circle, concatenated.

        A circle starts `turn_S` before the end of the sequence's list, so these tokens form two runs of the list.
        """
        first_S = np.cumsum(self.m_S) - self.m_S
        before_S = np.minimum(turn_S, used_S)
        start_R = np.stack((first_S + self.m_S - turn_S, first_S), axis=1).ravel()
        length_R = np.stack((before_S, used_S - before_S), axis=1).ravel()
        return _ranges(start_R[length_R > 0], length_R[length_R > 0])

    def _shuffled_tokens(self, random: np.random.Generator, drawn: np.ndarray) -> np.ndarray:
        """The tokens (indices into M) of each sequence with its n-grams shuffled, int32 [M]."""
        first_G = self._cut_into_ngrams(random, drawn)
        size_G = np.diff(first_G, append=np.int32(len(self.position_M)))
        of_sequence_S = np.searchsorted(first_G, np.cumsum(self.m_S) - self.m_S)
        shuffled_G = _shuffle_within(np.diff(of_sequence_S, append=len(first_G)), random)
        return _ranges(first_G[shuffled_G], size_G[shuffled_G])

    def _cut_into_ngrams(self, random: np.random.Generator, drawn: np.ndarray) -> np.ndarray:
        """Index (into M) of the first token of every n-gram; each segment is cut separately, from its first word on."""
        words = len(self.word_M_W)
        chance_W = random.random(words)
        size_W = np.ones(words, np.int8)
        for bound in np.cumsum(self.masker.ngram)[:-1]:
            size_W += (chance_W >= bound).view(np.int8)
        before_W = np.cumsum(size_W, dtype=np.int32) - size_W
        # n-gram i of a segment starts at its word before_W[i] - before_W[first], as long as it has that many words
        words_P = np.diff(self.first_W_P, append=np.int32(words))
        before_P = before_W[self.first_W_P]
        ngrams_P = np.searchsorted(before_W, before_P + words_P) - self.first_W_P
        index_G = _ranges(self.first_W_P, ngrams_P)
        size_G = size_W[index_G]
        drawn += [np.count_nonzero(size_G == words) for words in range(1, len(drawn) + 1)]
        return self.word_M_W[before_W[index_G] + np.repeat(self.first_W_P - before_P, ngrams_P)]


def _shuffle_within(count_S: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The numbers 0 to sum(count_S) - 1, shuffled within each sequence's share, int32."""
    first_S = (np.cumsum(count_S) - count_S).astype(np.int32)
    number_N = np.arange(count_S.max(initial=0), dtype=np.uint64)  # N: numbers in the largest share
    is_used_SN = number_N < count_S[:, None]
    key_SN = random.integers(0, 1 << 64, is_used_SN.shape, dtype=np.uint64) & ~_NUMBER | number_N
    key_SN[~is_used_SN] = _LAST
    key_SN.sort()  # short rows: 6 ns per key, where a sort of all keys at once takes 40
    return ((key_SN & _NUMBER).astype(np.int32) + first_S[:, None])[is_used_SN]


def _ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Concatenates the ranges start, start + 1, ..., each of `length` >= 1 numbers, int32."""
    first = np.cumsum(length, dtype=np.int32)
    numbers = np.ones(first[-1] if len(first) else 0, np.int32)
    first -= length
    numbers[first[:1]] = start[:1]
    numbers[first[1:]] = start[1:] - start[:-1] - length[:-1] + 1
    return np.cumsum(numbers, out=numbers)
