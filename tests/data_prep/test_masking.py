"""Claims about the n-gram masks."""

import numpy as np
import pytest
from scipy.stats import chi2

from data_prep.masking import COPIES_PER_SHUFFLE, Masker, bytes_per_copy, masked_count

CLS, SEP, WORD, PIECE = 0, 1, 2, 3
SPECIAL = np.array([True, True, False, False])
CONTINUATION = np.array([False, False, False, True])


def skewed_sequence(random, length):
    """Words of very different lengths, in two segments when there is room."""
    text = np.where(random.random(length - 2) < 0.6, WORD, PIECE)
    text[0] = WORD
    if length > 8:
        middle = int(random.integers(1, length - 4))
        text[middle], text[middle + 1] = SEP, WORD
    return np.concatenate(([CLS], text, [SEP]))


def draw(sequences, copies=10, ngram=(0.8, 0.1, 0.1), seq_length=64, seed=0):
    masker = Masker(seq_length, copies, ngram, SPECIAL, CONTINUATION)
    lengths = np.array([len(sequence) for sequence in sequences])
    bitmaps, drawn = masker.draw(np.concatenate(sequences), lengths, np.random.Generator(np.random.Philox(seed)))
    shape = (len(sequences), copies, bytes_per_copy(seq_length))
    return np.unpackbits(bitmaps.reshape(shape), axis=-1, bitorder="little").astype(bool), drawn


@pytest.fixture(scope="module")
def sequences():
    random = np.random.default_rng(1)
    return [skewed_sequence(random, int(length)) for length in random.integers(3, 65, 500)]


def test_the_masked_count_is_fifteen_percent_rounded_up_in_exact_arithmetic():
    lengths = np.arange(1, 5000)
    assert (masked_count(lengths) == [-(-15 * int(length) // 100) for length in lengths]).all()


def test_every_copy_masks_exactly_k_positions(sequences):
    masked, _ = draw(sequences)
    lengths = np.array([len(sequence) for sequence in sequences])
    assert (masked.sum(-1) == np.asarray(masked_count(lengths))[:, None]).all()


def test_special_tokens_and_positions_beyond_the_end_are_never_masked(sequences):
    masked, _ = draw(sequences)
    for sequence, copies in zip(sequences, masked, strict=True):
        allowed = ~SPECIAL[sequence]
        assert not copies[:, : len(sequence)][:, ~allowed].any()
        assert not copies[:, len(sequence) :].any()


def test_copies_of_one_shuffle_are_disjoint(sequences):
    masked, _ = draw(sequences, copies=COPIES_PER_SHUFFLE)
    for sequence, copies in zip(sequences, masked, strict=True):
        fitting = min(COPIES_PER_SHUFFLE, int((~SPECIAL[sequence]).sum()) // masked_count(len(sequence)))
        assert copies[:fitting].sum(0).max() == 1


def test_shuffles_differ(sequences):
    masked, _ = draw(sequences[:50], copies=12)
    long = [number for number, sequence in enumerate(sequences[:50]) if len(sequence) > 30]
    assert (masked[long, :6] != masked[long, 6:]).any((1, 2)).all()


@pytest.mark.parametrize("ngram", [(1.0,), (0.8, 0.1, 0.1), (6 / 11, 3 / 11, 2 / 11)])
def test_every_token_has_the_same_chance_of_being_masked(ngram):
    """Word-final pieces come out 7% low where only the end of the list is trimmed; this would show it."""
    text = [WORD, WORD, *[PIECE] * 4, WORD, WORD, SEP, WORD, PIECE, PIECE, WORD, PIECE, WORD, WORD]
    sequence = np.array([CLS, *text, SEP])
    draws, copies = 6000, 3
    masked, _ = draw([sequence] * draws, copies=copies, ngram=ngram)
    counts = masked[:, :, : len(sequence)].sum((0, 1))[~SPECIAL[sequence]]
    k, m = masked_count(len(sequence)), len(counts)
    expected = draws * copies * k / m
    # the copies are disjoint, so their sum is as even as one window of k * copies tokens
    share = k * copies / m
    statistic = ((counts - expected) ** 2).sum() / (draws * share * (1 - share)) * (m - 1) / m
    assert statistic < chi2.ppf(0.9999, m - 1)


def test_the_lengths_drawn_have_the_chances_asked_for(sequences):
    ngram = (0.5, 0.3, 0.2)
    _, drawn = draw(sequences * 4, ngram=ngram)
    expected = drawn.sum() * np.array(ngram)
    assert ((drawn - expected) ** 2 / expected).sum() < chi2.ppf(0.9999, len(ngram) - 1)


def test_at_most_two_ngrams_are_cut():
    """With words of one length and n-grams of one word, a mask is whole words but for its two ends."""
    sequence = np.array([CLS, *([WORD, PIECE, PIECE] * 20), SEP])
    masked, _ = draw([sequence] * 300, ngram=(1.0,))
    pieces_per_word = masked[:, :, 1:61].reshape(300, 10, 20, 3).sum(-1)
    cut = ((pieces_per_word > 0) & (pieces_per_word < 3)).sum(-1)
    assert cut.max() <= 2
    assert cut.mean() < 2


def test_pieces_of_a_word_are_masked_together():
    sequence = np.array([CLS, *([WORD, PIECE] * 30), SEP])
    masked, _ = draw([sequence] * 300, ngram=(1.0,))
    first, second = masked[:, :, 1:61:2], masked[:, :, 2:62:2]
    assert (first == second).mean() > 0.95


def test_an_ngram_does_not_reach_across_segments():
    """All n-grams have three words, but the first segment has one: it is an n-gram by itself."""
    sequence = np.array([CLS, WORD, SEP, *([WORD] * 36), SEP])
    masked, _ = draw([sequence] * 2000, ngram=(0.0, 0.0, 1.0), copies=1)
    alone, neighbour = masked[:, 0, 1], masked[:, 0, 3]
    together = (alone & neighbour).mean()
    assert together < 1.6 * alone.mean() * neighbour.mean() + 0.02


def test_masks_depend_on_the_seed_alone(sequences):
    first, again, other = (draw(sequences, seed=seed)[0] for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()


def test_no_sequences_give_no_masks():
    masker = Masker(64, 10, (1.0,), SPECIAL, CONTINUATION)
    bitmaps, drawn = masker.draw(np.empty(0, np.uint16), np.empty(0, np.int32), np.random.default_rng(0))
    assert bitmaps.shape == (0, 80)
    assert drawn.sum() == 0
