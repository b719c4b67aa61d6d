"""Claims about the sequences built from documents."""

import numpy as np
import pytest

from data_prep.sequences import Packing, TokenStream, build_sequences

CLS, SEP = 1, 2
TEXT = 10  # ids of text start here; `##` pieces are odd


def make_stream(random: np.random.Generator, documents: int = 60, sentence: tuple[int, int] = (1, 40)) -> TokenStream:
    sentences = [random.integers(*sentence, int(random.integers(1, 25))) for _ in range(documents)]
    sentence_ends = np.cumsum(np.concatenate(sentences))
    document_ends = np.cumsum([lengths.sum() for lengths in sentences])
    ids = random.integers(TEXT, 60_000, int(document_ends[-1])).astype(np.uint16)
    ids[np.concatenate(([0], sentence_ends[:-1]))] &= 0xFFFE  # a sentence starts with a whole word
    return TokenStream(ids, ids % 2 == 0, sentence_ends, document_ends)


def build(
    stream: TokenStream, seq_length: int = 64, packing: Packing = "documents", seed: int = 0, one_segment: bool = False
) -> list[np.ndarray]:
    ids, lengths = build_sequences(stream, seq_length, packing, CLS, SEP, np.random.default_rng(seed), one_segment)
    return np.split(ids, np.cumsum(lengths)[:-1])


def text_of(sequence: np.ndarray) -> np.ndarray:
    return sequence[(sequence != CLS) & (sequence != SEP)]


@pytest.fixture(scope="module")
def stream() -> TokenStream:
    return make_stream(np.random.default_rng(0))


@pytest.mark.parametrize("packing", ["documents", "full"])
@pytest.mark.parametrize("seq_length", [8, 64, 512])
@pytest.mark.parametrize("one_segment", [False, True])
def test_a_sequence_is_one_or_two_segments_between_special_tokens_on_request_one_and_no_token_is_lost(
    stream: TokenStream, packing: Packing, seq_length: int, one_segment: bool
) -> None:
    sequences = build(stream, seq_length, packing, one_segment=one_segment)
    for sequence in sequences:
        separators = np.flatnonzero(sequence == SEP)
        assert np.flatnonzero(sequence == CLS).tolist() == [0]
        assert len(separators) in ((1,) if one_segment else (1, 2))
        assert separators[-1] == len(sequence) - 1 < seq_length
        assert np.diff([0, *separators]).min() > 1
    assert np.array_equal(np.concatenate([text_of(sequence) for sequence in sequences]), stream.ids)


def test_documents_never_share_a_sequence(stream: TokenStream) -> None:
    ends = np.cumsum([len(text_of(sequence)) for sequence in build(stream)])
    assert np.isin(stream.document_ends, ends).all()


@pytest.mark.parametrize(("one_segment", "allowed"), [(False, {63, 64}), (True, {64})])
def test_full_packing_leaves_room_only_in_the_last_sequence_or_where_a_sentence_had_to_be_divided(
    stream: TokenStream, one_segment: bool, allowed: set[int]
) -> None:
    lengths = [len(sequence) for sequence in build(stream, packing="full", one_segment=one_segment)]
    assert set(lengths[:-1]) <= allowed
    assert np.mean(lengths[:-1]) > 63.5


def test_segments_split_at_a_sentence_end(stream: TokenStream) -> None:
    position = 0
    for sequence in build(stream):
        separators = np.flatnonzero(sequence == SEP)
        if len(separators) == 2:
            assert position + separators[0] - 1 in stream.sentence_ends
        position += len(text_of(sequence))


def test_the_split_is_near_the_middle() -> None:
    stream = make_stream(np.random.default_rng(0), documents=600, sentence=(4, 8))
    pairs = [sequence for sequence in build(stream) if len(sequence) == 64 and (sequence == SEP).sum() == 2]
    first = np.array([np.flatnonzero(sequence == SEP)[0] - 1 for sequence in pairs])
    assert abs(first.mean() - 30) < 1
    assert (abs(first - 30) < 8).all()


def test_one_sequence_in_ten_has_a_single_segment() -> None:
    stream = make_stream(np.random.default_rng(0), documents=3000, sentence=(4, 8))
    full = [sequence for sequence in build(stream) if len(sequence) >= 60]
    assert abs(np.mean([(sequence == SEP).sum() == 1 for sequence in full]) - 0.1) < 0.02


def test_one_target_length_in_twenty_is_shorter() -> None:
    """Long documents of whole words have short sequences only where the target is short."""
    ids = np.full(200_000, TEXT, np.uint16)
    ends = np.arange(5, 200_001, 5)
    stream = TokenStream(ids, np.ones(200_000, bool), ends, ends[-1:])
    lengths = np.array([len(sequence) for sequence in build(stream)])
    short = lengths[lengths < 63]
    assert abs(len(short) / len(lengths) - 0.05) < 0.01
    assert short.min() <= 8
    assert abs(short.mean() - (5 + 62) / 2) < 4


def test_a_word_that_does_not_fit_starts_the_next_sequence(stream: TokenStream) -> None:
    assert all(text_of(sequence)[0] % 2 == 0 for sequence in build(stream))


def test_a_word_longer_than_a_sequence_is_cut() -> None:
    ids = np.full(1000, TEXT + 1, np.uint16)
    ids[0] -= 1
    sequences = build(TokenStream(ids, ids % 2 == 0, np.array([1000]), np.array([1000])))
    assert sum(len(text_of(sequence)) for sequence in sequences) == 1000
    assert max(map(len, sequences)) <= 64


def test_equal_random_streams_give_equal_sequences(stream: TokenStream) -> None:
    first, again, other = (np.concatenate(build(stream, seed=seed)) for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("packing", ["documents", "full"])
def test_no_text_gives_no_sequences(packing: Packing) -> None:
    nothing = np.empty(0, np.int64)
    stream = TokenStream(np.empty(0, np.uint16), np.empty(0, bool), nothing, nothing)
    ids, lengths = build_sequences(stream, 64, packing, CLS, SEP, np.random.default_rng(0))
    assert len(ids) == len(lengths) == 0
