"""Counts of a folder's sequences, and where its masks fall beside where they should: by position, by piece, in runs.

A token's chance of being masked is k / m, of the m of its sequence that may be; rates are given as multiples of it.
Suffixes: S sequences, C mask copies, P positions, M tokens that may be masked, W words.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.inspection import Rows
from data_prep.manifest import Manifest
from data_prep.masking import mask_size
from data_prep.tokens import WordPiece
from foundation.config import ConfigError

PIECES = 5  # the first four pieces of a word, and all later ones together
_SIMULATED = 512  # sequences, spread over those seen
_DRAWS = 4  # masks simulated for each
_BITMAPS, _EXPECTED = "#2a6f97", "#c1440e"
_LONGEST_RUN = 12  # in the picture; longer ones are rare


class MaskStatistics:
    """Counts over the sequences seen; `chance` arrays are what the counts should be.

    Args:
        seq_length: longest sequence in tokens.
        expected: sequences that will be seen in all: masks are simulated for some of them only.
        seen: sequences among those that are counted elsewhere before.

    Attributes:
        pairs: sequences of two segments. most_cut: words cut by one mask.
    """

    def __init__(self, seq_length: int, expected: int = _SIMULATED, seen: int = 0) -> None:
        self._expected, self._seen = expected, seen
        self.sequences = self.tokens = self.pairs = 0
        self.words_masked = self.words_cut = self.most_cut = 0
        self.position, self.position_chance = np.zeros((2, seq_length))
        self.piece, self.piece_chance = np.zeros((2, PIECES))
        self.runs, self.simulated_runs = np.zeros((2, seq_length + 1), np.int64)

    def add(self, rows: Rows, manifest: Manifest, tokenizer: WordPiece) -> None:
        """Counts some rows in."""
        length = manifest.seq_length
        self.sequences += len(rows.lengths)
        self.tokens += int(rows.lengths.sum())
        self.pairs += int(((rows.ids == manifest.special_tokens.sep).sum(1) == 2).sum())
        masked_SCP = rows.masked[:, :, :length]
        self.runs += np.bincount(run_lengths(masked_SCP), minlength=length + 1)
        maskable_SP = (np.arange(length) < rows.lengths[:, None]) & ~tokenizer.never_masked[rows.ids]
        start_SP = maskable_SP & ~tokenizer.continuation[rows.ids]
        start_SP[:, 1:] |= maskable_SP[:, 1:] & ~maskable_SP[:, :-1]
        chance_S = mask_size(rows.lengths) / maskable_SP.sum(1) * manifest.mask_copies
        chance_SP = np.where(maskable_SP, chance_S[:, None], 0.0)
        count_SP = masked_SCP.sum(1)
        self.position += count_SP.sum(0)
        self.position_chance += chance_SP.sum(0)
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
        numbers = np.arange(self._seen, self._seen + len(rows.lengths))
        self._seen += len(rows.lengths)
        for row in np.flatnonzero(numbers % max(1, self._expected // _SIMULATED) == 0):
            random = np.random.default_rng(numbers[row])
            for _ in range(_DRAWS):
                masked = simulated_mask(maskable_SP[row], start_SP[row], int(rows.lengths[row]), ngram, random)
                self.simulated_runs += np.bincount(run_lengths(masked[None, None]), minlength=len(self.simulated_runs))

    def join(self, other: "MaskStatistics") -> None:
        """Counts in what was counted elsewhere."""
        self.most_cut = max(self.most_cut, other.most_cut)
        for name in vars(self).keys() - {"most_cut", "_expected", "_seen"}:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def run_lengths(masked: np.ndarray) -> np.ndarray:
    """Lengths of the unbroken runs of masked positions."""
    edges = np.diff(np.pad(masked, ((0, 0), (0, 0), (1, 1))).astype(np.int8), axis=-1).ravel()
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


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


def draw_masks(statistics: MaskStatistics, path: Path) -> None:
    """A PNG: run lengths beside the simulated ones, and rates by position and by piece as multiples of the chance.

    Raises:
        ConfigError: the file cannot be written.
    """
    import matplotlib  # takes a second

    matplotlib.use("Agg")  # no display on a cluster
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13.0, 3.8), layout="constrained")
    lengths = np.arange(1, _LONGEST_RUN + 1)
    for counts, offset, color, label in (
        (statistics.runs, -0.2, _BITMAPS, "bitmaps"),
        (statistics.simulated_runs, 0.2, _EXPECTED, "simulated"),
    ):
        shares = np.pad(counts, (0, _LONGEST_RUN + 1))[1 : _LONGEST_RUN + 1] / max(1, counts.sum())
        left.bar(lengths + offset, shares, 0.4, color=color, label=label)
    left.set(title="Runs of masked tokens", xlabel="tokens", ylabel="share of the runs")
    left.legend(frameon=False)
    seen = statistics.position_chance > 0
    middle.plot(np.flatnonzero(seen), (statistics.position[seen] / statistics.position_chance[seen]), color=_BITMAPS)
    middle.set(title="By position in the sequence", xlabel="position", ylabel="rate / chance")
    right.bar(np.arange(1, PIECES + 1), statistics.piece / np.maximum(1e-9, statistics.piece_chance), color=_BITMAPS)
    right.set(title=f"By piece of the word ({PIECES}: that and later)", xlabel="piece", ylabel="rate / chance")
    for axes in (middle, right):
        axes.axhline(1.0, color=_EXPECTED, linewidth=1)
        axes.set_ylim(0.8, 1.2)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"figure: {path} cannot be written ({error}); give a .png in a folder that exists") from None
    finally:
        plt.close(figure)
