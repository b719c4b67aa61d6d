"""Which positions of a sequence are masked: n-gram masks, drawn in several copies when the shards are built.

Words are cut into n-grams, the n-grams are shuffled and their tokens laid on a circle; from a uniform start,
disjoint windows of k = ceil(0.15 n) tokens are one mask copy each. By symmetry every token has exactly the
same chance k / m of being masked (m tokens may be), and at most the two n-grams at a window's ends are cut.

Array suffixes: S sequences, T tokens of the batch, M tokens of it that may be masked, W words, G n-grams.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

COPIES_PER_SHUFFLE = 6  # 6 x 15% = 90% of the circle; a seventh window would overlap the first
_BATCH = 2048  # sequences masked together: keeps the temporary arrays near the processor's cache
_RANDOM_BITS, _NGRAM_BITS = (
    36,
    16,
)  # of a sort key: sequence | random | n-gram; the last makes every key distinct


def masked_count(length: np.ndarray | int) -> np.ndarray | int:
    """Tokens to mask of n: ceil(0.15 n), exactly; n counts [CLS] and [SEP], as google-research/electra."""
    return (3 * length + 19) // 20


def bytes_per_copy(seq_length: int) -> int:
    """Size of one mask copy's bitmap: position p is bit p % 8 of byte p // 8."""
    return (seq_length + 7) // 8


@dataclass(frozen=True)
class Masker:
    """Draws the masks of sequences.

    Args:
        seq_length: positions of a bitmap; no sequence is longer.
        copies: bitmaps per sequence.
        ngram: chances of n-grams of 1, 2, ... words; they sum to 1.
        special: bool [vocabulary]: ids that are never masked and that end an n-gram.
        continuation: bool [vocabulary]: `##` ids, which belong to the word before them.
    """

    seq_length: int
    copies: int
    ngram: Sequence[float]
    special: np.ndarray
    continuation: np.ndarray

    def draw(self, ids: np.ndarray, lengths: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Masks for the sequences laid end to end in `ids`.

        Returns:
            Bitmaps, uint8 [S, copies * bytes_per_copy]; how often an n-gram of 1, 2, ... words was drawn,
            int64.
        """
        ends = np.cumsum(lengths)
        bitmaps = np.zeros((len(lengths), self.copies * bytes_per_copy(self.seq_length)), np.uint8)
        drawn = np.zeros(len(self.ngram), np.int64)
        for first in range(0, len(lengths), _BATCH):
            part = slice(first, first + _BATCH)
            start = ends[first] - lengths[first]
            batch = _Batch.of(ids[start : ends[part][-1]], lengths[part], self)
            bitmaps[part] = self._draw_batch(batch, random, drawn)
        return bitmaps, drawn

    def _draw_batch(self, batch: "_Batch", random: np.random.Generator, drawn: np.ndarray) -> np.ndarray:
        width = bytes_per_copy(self.seq_length) * 8
        masked_SCP = np.zeros((len(batch.k_S), self.copies, width), np.bool_)
        for first_copy in range(0, self.copies, COPIES_PER_SHUFFLE):
            copies = min(COPIES_PER_SHUFFLE, self.copies - first_copy)
            self._fill(batch, random, drawn, masked_SCP[:, first_copy : first_copy + copies])
        return np.packbits(masked_SCP, axis=-1, bitorder="little").reshape(len(batch.k_S), -1)

    def _fill(self, batch: "_Batch", random: np.random.Generator, drawn: np.ndarray, masked_SCP: np.ndarray) -> None:
        """Fills copies of every sequence; one too short for all of them in one shuffle is shuffled again."""
        filled_S = np.zeros(len(batch.k_S), np.int64)
        copies = masked_SCP.shape[1]
        rows_S = np.arange(len(batch.k_S))
        while len(rows_S):
            window_M = batch.windows(self.ngram, random, drawn)
            copy_M = filled_S[rows_S][batch.row_M] + window_M
            used_M = (window_M < batch.disjoint_S[batch.row_M]) & (copy_M < copies)
            masked_SCP[rows_S[batch.row_M[used_M]], copy_M[used_M], batch.position_M[used_M]] = True
            filled_S[rows_S] += batch.disjoint_S
            unfinished_S = filled_S[rows_S] < copies
            rows_S = rows_S[unfinished_S]
            batch = batch.keep(unfinished_S)


@dataclass(frozen=True)
class _Batch:
    """The tokens of some sequences that may be masked, and how they group into words and segments."""

    k_S: np.ndarray  # tokens to mask
    m_S: np.ndarray  # tokens that may be masked
    row_M: np.ndarray  # sequence of each such token
    position_M: np.ndarray  # its position in the sequence
    word_start_M: np.ndarray  # bool: first piece of a word
    segment_start_M: np.ndarray  # bool: first token after a special one

    @classmethod
    def of(cls, ids_T: np.ndarray, lengths_S: np.ndarray, masker: Masker) -> "_Batch":
        maskable_T = ~masker.special[ids_T]
        segment_start_T = np.empty(len(ids_T), np.bool_)  # a sequence starts with [CLS], which is special
        segment_start_T[0] = False
        segment_start_T[1:] = maskable_T[1:] & ~maskable_T[:-1]
        row_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
        position_T = np.arange(len(ids_T)) - np.repeat(np.cumsum(lengths_S) - lengths_S, lengths_S)
        row_M = row_T[maskable_T]
        return cls(
            k_S=np.asarray(masked_count(lengths_S.astype(np.int64))),
            m_S=np.bincount(row_M, minlength=len(lengths_S)),
            row_M=row_M,
            position_M=position_T[maskable_T],
            word_start_M=(segment_start_T | ~masker.continuation[ids_T])[maskable_T],
            segment_start_M=segment_start_T[maskable_T],
        )

    @property
    def disjoint_S(self) -> np.ndarray:
        """Windows of k tokens that fit on the circle without touching twice."""
        return np.minimum(self.m_S // self.k_S, COPIES_PER_SHUFFLE)

    def keep(self, rows_S: np.ndarray) -> "_Batch":
        """The batch of the chosen sequences alone, renumbered; `rows_S` is bool."""
        tokens_M = rows_S[self.row_M]
        return _Batch(
            k_S=self.k_S[rows_S],
            m_S=self.m_S[rows_S],
            row_M=(np.cumsum(rows_S) - 1)[self.row_M[tokens_M]],
            position_M=self.position_M[tokens_M],
            word_start_M=self.word_start_M[tokens_M],
            segment_start_M=self.segment_start_M[tokens_M],
        )

    def windows(self, ngram: Sequence[float], random: np.random.Generator, drawn: np.ndarray) -> np.ndarray:
        """Shuffles once: the number of the window of k tokens into which each token falls, int64 [M]."""
        first_G = self._cut_into_ngrams(ngram, random, drawn)
        size_G = np.diff(first_G, append=len(self.row_M))
        place_G = _shuffled_places(self.row_M[first_G], size_G, len(self.k_S), random)
        turn_S = random.integers(0, self.m_S)
        place_M = np.repeat(place_G - first_G, size_G) + np.arange(len(self.row_M)) + turn_S[self.row_M]
        m_M = self.m_S[self.row_M]
        place_M -= np.where(place_M >= m_M, m_M, 0)
        return place_M // self.k_S[self.row_M]

    def _cut_into_ngrams(self, ngram: Sequence[float], random: np.random.Generator, drawn: np.ndarray) -> np.ndarray:
        """Index (into M) of the first token of every n-gram; each segment is cut from its first word on."""
        word_W = np.flatnonzero(self.word_start_M)
        segment_word_W = np.flatnonzero(self.segment_start_M[word_W])
        words_per_segment = np.diff(segment_word_W, append=len(word_W))
        size_W = 1 + np.searchsorted(np.cumsum(ngram)[:-1], random.random(len(word_W)), side="right")
        before_W = np.cumsum(size_W) - size_W
        before_W -= np.repeat(before_W[segment_word_W], words_per_segment)  # words of the segment before this n-gram
        inside_W = before_W < np.repeat(words_per_segment, words_per_segment)
        drawn += np.bincount(size_W[inside_W] - 1, minlength=len(ngram))
        return word_W[(np.repeat(segment_word_W, words_per_segment) + before_W)[inside_W]]


def _shuffled_places(row_G: np.ndarray, size_G: np.ndarray, sequences: int, random: np.random.Generator) -> np.ndarray:
    """Where each n-gram starts on its sequence's circle once they are shuffled, int64 [G]."""
    count_S = np.bincount(row_G, minlength=sequences)
    first_S = np.cumsum(count_S) - count_S
    number_G = np.arange(len(row_G)) - first_S[row_G]
    random_G = random.integers(0, 1 << _RANDOM_BITS, len(row_G), dtype=np.uint64)
    key_G = (row_G.astype(np.uint64) << np.uint64(_RANDOM_BITS + _NGRAM_BITS)) | (random_G << np.uint64(_NGRAM_BITS))
    key_G |= number_G.astype(np.uint64)
    key_G.sort()
    shuffled_G = first_S[row_G] + (key_G & np.uint64((1 << _NGRAM_BITS) - 1)).astype(np.int64)
    ends_G = np.cumsum(size_G[shuffled_G])
    starts_G = ends_G - size_G[shuffled_G]
    tokens_before_S = starts_G[first_S]
    place_G = np.empty_like(starts_G)
    place_G[shuffled_G] = starts_G - tokens_before_S[row_G]
    return place_G
