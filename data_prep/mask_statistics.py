"""Where the masks of a folder fall, against where they should: by position, by piece of word, in runs; words cut.

A token's chance of being masked is k / m, of the m of its sequence that may be; rates are given as multiples of it.
Suffixes: S sequences, C mask copies, P positions, M tokens that may be masked, W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from data_prep.inspection import Rows, add_counts, run_lengths
from data_prep.manifest import Manifest
from data_prep.masking import mask_size
from data_prep.tokens import WordPiece

PIECES = 5  # the first four pieces of a word, and all later ones together
_SIMULATED = 512  # sequences, spread over those seen
_DRAWS = 4  # masks simulated for each


@dataclass
class MaskStatistics:
    """Counts over the sequences seen; `chance` arrays are what the counts should be.

    `expected` is how many sequences will be seen in all: masks are simulated for some of them only. `seen` begins with
    those that are counted elsewhere before.
    """

    expected: int = _SIMULATED
    seen: int = 0
    masks: int = 0
    words_masked: int = 0
    words_cut: int = 0
    most_cut: int = 0  # words cut by one mask
    position: np.ndarray = field(default_factory=lambda: np.zeros(0))
    position_chance: np.ndarray = field(default_factory=lambda: np.zeros(0))
    piece: np.ndarray = field(default_factory=lambda: np.zeros(PIECES))
    piece_chance: np.ndarray = field(default_factory=lambda: np.zeros(PIECES))
    simulated_runs: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))

    def add(self, rows: Rows, manifest: Manifest, tokenizer: WordPiece) -> None:
        """Counts some rows in."""
        length = manifest.seq_length
        masked_SCP = rows.masked[:, :, :length]
        maskable_SP = (np.arange(length) < rows.lengths[:, None]) & ~tokenizer.never_masked[rows.ids]
        start_SP = maskable_SP & ~tokenizer.continuation[rows.ids]
        start_SP[:, 1:] |= maskable_SP[:, 1:] & ~maskable_SP[:, :-1]
        chance_S = np.asarray(mask_size(rows.lengths)) / maskable_SP.sum(1) * manifest.mask_copies
        chance_SP = np.where(maskable_SP, chance_S[:, None], 0.0)
        count_SP = masked_SCP.sum(1)
        self.masks += len(rows.lengths) * manifest.mask_copies
        self.position = add_counts(self.position, count_SP.sum(0))
        self.position_chance = add_counts(self.position_chance, chance_SP.sum(0))
        first_SP = np.maximum.accumulate(np.where(start_SP, np.arange(length), 0), axis=1)
        piece_M = np.minimum(np.arange(length) - first_SP, PIECES - 1)[maskable_SP]
        self.piece += np.bincount(piece_M, count_SP[maskable_SP], PIECES)
        self.piece_chance += np.bincount(piece_M, chance_SP[maskable_SP], PIECES)
        self._count_words(masked_SCP, maskable_SP, start_SP)
        self._simulate(rows, maskable_SP, start_SP, manifest.config.ngram)

    def _count_words(self, masked_SCP: np.ndarray, maskable_SP: np.ndarray, start_SP: np.ndarray) -> None:
        first_W = np.flatnonzero(start_SP[maskable_SP])
        size_W = np.diff(first_W, append=int(maskable_SP.sum()))
        first_word_S = np.cumsum(start_SP.sum(1)) - start_SP.sum(1)
        for copy in range(masked_SCP.shape[1]):
            masked_W = np.add.reduceat(masked_SCP[:, copy][maskable_SP], first_W, dtype=np.int32)
            cut_W = (masked_W > 0) & (masked_W < size_W)
            self.words_masked += int((masked_W > 0).sum())
            self.words_cut += int(cut_W.sum())
            self.most_cut = max(self.most_cut, int(np.add.reduceat(cut_W, first_word_S, dtype=np.int32).max()))

    def _simulate(self, rows: Rows, maskable_SP: np.ndarray, start_SP: np.ndarray, ngram: Sequence[float]) -> None:
        stride = max(1, self.expected // _SIMULATED)
        numbers = np.arange(self.seen, self.seen + len(rows.lengths))
        self.seen += len(rows.lengths)
        for row in np.flatnonzero(numbers % stride == 0):
            random = np.random.default_rng(numbers[row])
            for _ in range(_DRAWS):
                masked = simulated_mask(maskable_SP[row], start_SP[row], int(rows.lengths[row]), ngram, random)
                self.simulated_runs = add_counts(self.simulated_runs, np.bincount(run_lengths(masked[None, None])))

    def join(self, other: "MaskStatistics") -> None:
        """Counts in what was counted elsewhere."""
        for name in ("masks", "words_masked", "words_cut"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.most_cut = max(self.most_cut, other.most_cut)
        for name in ("position", "position_chance", "piece", "piece_chance", "simulated_runs"):
            setattr(self, name, add_counts(getattr(self, name), getattr(other, name)))


def simulated_mask(
    maskable: np.ndarray, starts: np.ndarray, length: int, ngram: Sequence[float], random: np.random.Generator
) -> np.ndarray:
    """One mask drawn as docs and paper say it, slowly: n-grams of words, shuffled on a circle, k tokens from anywhere.

    `maskable` and `starts` (of a word) are booleans of each position, `length` counts the sequence's tokens, and
    `ngram` has the chances of 1, 2, ... words.
    """
    words: list[list[int]] = []
    for position in np.flatnonzero(maskable).tolist():
        if starts[position]:
            words.append([])
        words[-1].append(position)
    grams: list[list[int]] = []
    while words:
        size = 1 + int(random.choice(len(ngram), p=ngram))
        gram = words.pop(0)
        while size > 1 and words and words[0][0] == gram[-1] + 1:  # not across a [SEP]
            gram = gram + words.pop(0)
            size -= 1
        grams.append(gram)
    circle = [position for number in random.permutation(len(grams)) for position in grams[number]]
    start = int(random.integers(len(circle)))
    masked = np.zeros(len(maskable), np.bool_)
    masked[(circle[start:] + circle[:start])[: int(mask_size(length))]] = True
    return masked
