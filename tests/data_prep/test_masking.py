"""Claims about the n-gram masks."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import chi2

from data_prep.masking import COPIES_PER_SHUFFLE, Masker, bytes_per_copy, mask_size

CLS, SEP, WORD, PIECE = 0, 1, 2, 3
SPECIAL = np.array([True, True, False, False])
CONTINUATION = np.array([False, False, False, True])


def skewed_sequence(random: np.random.Generator, length: int) -> np.ndarray:
    """Words of very different lengths, in two segments when there is room."""
    text = np.where(random.random(length - 2) < 0.6, WORD, PIECE)
    text[0] = WORD
    if length > 8:
        middle = int(random.integers(1, length - 4))
        text[middle], text[middle + 1] = SEP, WORD
    return np.concatenate(([CLS], text, [SEP]))


def draw(
    sequences: Sequence[np.ndarray], copies: int = 10, ngram: tuple[float, ...] = (0.8, 0.1, 0.1), seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The masked positions, bool [sequence, copy, position], and how many n-grams of each length were drawn."""
    masker = Masker(64, copies, ngram, SPECIAL, CONTINUATION)
    lengths = np.array([len(sequence) for sequence in sequences])
    bitmaps, drawn = masker.draw(np.concatenate(sequences), lengths, np.random.Generator(np.random.Philox(seed)))
    shape = (len(sequences), copies, bytes_per_copy(64))
    return np.unpackbits(bitmaps.reshape(shape), axis=-1, bitorder="little").astype(bool), drawn


@pytest.fixture(scope="module")
def sequences() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [skewed_sequence(random, int(length)) for length in random.integers(3, 65, 500)]


def test_the_masked_count_is_fifteen_percent_rounded_up_in_exact_arithmetic() -> None:
    lengths = np.arange(1, 5000)
    assert (mask_size(lengths) == [-(-15 * int(length) // 100) for length in lengths]).all()


def test_every_copy_masks_exactly_k_positions(sequences: list[np.ndarray]) -> None:
    masked, _ = draw(sequences)
    lengths = np.array([len(sequence) for sequence in sequences])
    assert (masked.sum(-1) == np.asarray(mask_size(lengths))[:, None]).all()


def test_special_tokens_and_padding_are_never_masked(sequences: list[np.ndarray]) -> None:
    masked, _ = draw(sequences)
    for sequence, copies in zip(sequences, masked, strict=True):
        assert not copies[:, : len(sequence)][:, SPECIAL[sequence]].any()
        assert not copies[:, len(sequence) :].any()


def test_copies_of_one_shuffle_are_disjoint(sequences: list[np.ndarray]) -> None:
    masked, _ = draw(sequences, copies=COPIES_PER_SHUFFLE)
    for sequence, copies in zip(sequences, masked, strict=True):
        fitting = min(COPIES_PER_SHUFFLE, int((~SPECIAL[sequence]).sum()) // mask_size(len(sequence)))
        assert copies[:fitting].sum(0).max() == 1


def test_shuffles_differ(sequences: list[np.ndarray]) -> None:
    masked, _ = draw(sequences[:50], copies=12)
    long = [number for number, sequence in enumerate(sequences[:50]) if len(sequence) > 30]
    assert (masked[long, :6] != masked[long, 6:]).any((1, 2)).all()


@pytest.mark.parametrize("ngram", [(1.0,), (0.8, 0.1, 0.1), (6 / 11, 3 / 11, 2 / 11)])
@pytest.mark.parametrize(
    "text",
    [
        [WORD, WORD, *[PIECE] * 4, WORD, WORD, SEP, WORD, PIECE, PIECE, WORD, PIECE, WORD, WORD],
        [WORD, *[PIECE] * 7, *[WORD] * 12, SEP, *[WORD, PIECE] * 3, *[WORD] * 9, WORD, *[PIECE] * 5],
        [WORD, PIECE, WORD, WORD, PIECE, PIECE, WORD, WORD, WORD],
    ],
    ids=["two segments", "rare words at both ends", "short"],
)
def test_every_token_has_the_same_chance_of_being_masked(text: list[int], ngram: tuple[float, ...]) -> None:
    """Trimming only the end of the list would mask word-final pieces 7% too rarely; this test would notice."""
    sequence = np.array([CLS, *text, SEP])
    draws, copies = 6000, 3
    masked, _ = draw([sequence] * draws, copies=copies, ngram=ngram)
    counts = masked[:, :, : len(sequence)].sum((0, 1))[~SPECIAL[sequence]]
    k, m = mask_size(len(sequence)), len(counts)
    expected = draws * copies * k / m
    # the copies are disjoint, so their sum is as even as one window of k * copies tokens
    share = k * copies / m
    statistic = ((counts - expected) ** 2).sum() / (draws * share * (1 - share)) * (m - 1) / m
    assert statistic < chi2.ppf(0.9999, m - 1)


def test_ngram_lengths_have_the_configured_probabilities(sequences: list[np.ndarray]) -> None:
    ngram = (0.5, 0.3, 0.2)
    _, drawn = draw(sequences * 4, ngram=ngram)
    expected = drawn.sum() * np.array(ngram)
    assert ((drawn - expected) ** 2 / expected).sum() < chi2.ppf(0.9999, len(ngram) - 1)


def test_at_most_two_ngrams_are_cut() -> None:
    """If words have equal lengths and n-grams have one word, masks consist of whole words except at their two ends."""
    sequence = np.array([CLS, *([WORD, PIECE, PIECE] * 20), SEP])
    masked, _ = draw([sequence] * 300, ngram=(1.0,))
    pieces_per_word = masked[:, :, 1:61].reshape(300, 10, 20, 3).sum(-1)
    cut = ((pieces_per_word > 0) & (pieces_per_word < 3)).sum(-1)
    assert cut.max() <= 2
    assert cut.mean() < 2


def test_no_ngram_crosses_segments() -> None:
    """All n-grams have three words, but the first segment has only one, which is then an n-gram."""
    sequence = np.array([CLS, WORD, SEP, *([WORD] * 36), SEP])
    masked, _ = draw([sequence] * 2000, ngram=(0.0, 0.0, 1.0), copies=1)
    alone, neighbor = masked[:, 0, 1], masked[:, 0, 3]
    assert (alone & neighbor).mean() < 1.6 * alone.mean() * neighbor.mean() + 0.02


def test_masks_depend_only_on_the_seed(sequences: list[np.ndarray]) -> None:
    first, again, other = (draw(sequences, seed=seed)[0] for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()


def test_no_sequences_give_no_masks() -> None:
    masker = Masker(64, 10, (1.0,), SPECIAL, CONTINUATION)
    bitmaps, drawn = masker.draw(np.empty(0, np.uint16), np.empty(0, np.int32), np.random.default_rng(0))
    assert bitmaps.shape == (0, 80)
    assert drawn.sum() == 0


def simulated_mask(ids: np.ndarray, ngram: Sequence[float], random: np.random.Generator) -> np.ndarray:
    """Draws one mask slowly, as in docs and paper: n-grams shuffled on a circle, k tokens from a random start."""
    words: list[list[int]] = []
    for position in np.flatnonzero(~SPECIAL[ids]).tolist():
        if not CONTINUATION[ids[position]]:
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
    masked = np.zeros(len(ids), np.bool_)
    masked[(circle[start:] + circle[:start])[: int(mask_size(len(ids)))]] = True
    return masked


def run_lengths(masked: np.ndarray) -> np.ndarray:
    """The lengths of the unbroken runs of masked positions."""
    edges = np.diff(np.pad(masked, ((0, 0), (0, 0), (1, 1))).astype(np.int8), axis=-1).ravel()
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


def test_the_simulation_and_the_masker_have_the_same_run_lengths() -> None:
    """One is slow and simple, the other vectorized."""
    random = np.random.default_rng(0)
    ids = np.where(random.random(64) < 0.3, PIECE, WORD)
    ids[[0, 30, 63]], ids[[1, 31]] = (CLS, SEP, SEP), WORD
    ngram, draws = (0.5, 0.3, 0.2), 3000
    simulated = np.stack([simulated_mask(ids, ngram, random) for _ in range(draws)])
    masked, _ = draw([ids] * draws, copies=1, ngram=ngram)
    expected, counts = (np.bincount(run_lengths(found), minlength=12)[:8] for found in (simulated[:, None], masked))
    assert counts[1:5] == pytest.approx(expected[1:5], rel=0.1)
