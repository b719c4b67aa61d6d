"""Packs documents into training sequences `[CLS] A [SEP] (B [SEP])`, after google-research/electra's ExampleBuilder.

A document's tokens fill sequences up to a target length; one target in twenty is shorter. One sequence in ten is a
single segment; the others are split at a sentence end near the middle, or with `one_segment` not at all. Overflow
starts the next sequence, whereas Google's builder discards it (14% of the pieces at length 128, 3.7% at 512).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

SHORT_TARGET = 0.05  # electra build_pretraining_dataset.py, ExampleBuilder._create_example
SHORTEST_TARGET = 5  # ibid.: randint(5, max_length)
SINGLE_SEGMENT = 0.1  # ibid.
CROSS_MIDDLE = 0.5  # ibid.: a sentence across the middle stays in the first segment half of the time
_DRAWS = 4096  # random numbers taken at a time

_NO_LIMIT = 1 << 32

Packing = Literal["documents", "full"]


@dataclass(frozen=True)
class TokenStream:
    """Concatenated word pieces of documents; all ends are offsets into `ids`, the last one its length."""

    ids: np.ndarray
    word_starts: np.ndarray  # bool: True if not a `##` piece
    sentence_ends: np.ndarray
    document_ends: np.ndarray


def build_sequences(
    stream: TokenStream,
    seq_length: int,
    packing: Packing,
    cls: int,
    sep: int,
    random: np.random.Generator,
    one_segment: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Packs the tokens of the stream, in order, into sequences of at most `seq_length` tokens.

    No token is lost.

    Returns:
        The concatenated ids of the sequences, special tokens included, uint16; and their lengths, int32.
    """
    single = 1.0 if one_segment else SINGLE_SEGMENT
    if packing == "documents":
        ends, half = _fill_documents(stream, seq_length, single, random)
    else:
        ends, half = _fill_across(len(stream.ids), seq_length, single, random)
    starts = np.concatenate(([0], ends)).astype(np.int64)[:-1]
    splits = _segment_ends(starts, ends, half, stream.sentence_ends, random)
    return _with_special_tokens(stream.ids, starts, splits, ends, cls, sep)


def _fill_documents(
    stream: TokenStream, seq_length: int, single: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of the sequences (offsets into the stream) and target lengths of their first segments.

    A word that does not fit starts the next sequence whole, unless it is longer than a sequence.
    """
    numbers = np.arange(len(stream.ids), dtype=np.int32)
    cut = np.maximum.accumulate(np.where(stream.word_starts, numbers, 0))  # start of each token's word
    ends: list[int] = []
    room: list[int] = []  # text tokens that each sequence can hold, drawn ahead
    half: list[int] = []
    position = 0
    for document_end in stream.document_ends.tolist():
        while position < document_end:
            if len(ends) == len(room):
                new_room, new_half = _draw_targets(_DRAWS, SHORT_TARGET, single, seq_length, random)
                room += new_room.tolist()
                half += new_half.tolist()
            full = position + room[len(ends)]
            if full >= document_end:
                position = document_end
            else:
                at = int(cut[full])
                position = at if at > position else full
            ends.append(position)
    return np.array(ends, np.int64), np.array(half[: len(ends)], np.int64)


def _fill_across(
    tokens: int, seq_length: int, single: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Like `_fill_documents`, but every sequence is filled completely, across document ends."""
    room, half = _draw_targets(tokens // (seq_length - 3) + 1, 0.0, single, seq_length, random)
    ends = np.cumsum(room)
    count = int(np.searchsorted(ends, tokens)) + 1 if tokens else 0
    return np.minimum(ends[:count], tokens), half[:count]


def _draw_targets(
    count: int, short_target: float, single_segment: float, seq_length: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws each sequence's number of text tokens and its first segment's target, unlimited for a single segment."""
    short = random.random(count) < short_target
    target = np.where(short, random.integers(SHORTEST_TARGET, seq_length + 1, count), seq_length)
    single = random.random(count) < single_segment
    return target - np.where(single, 2, 3), np.where(single, _NO_LIMIT, (target - 3) // 2)


def _segment_ends(
    starts: np.ndarray,
    ends: np.ndarray,
    half: np.ndarray,
    sentence_ends: np.ndarray,
    random: np.random.Generator,
) -> np.ndarray:
    """Returns the end of each sequence's first segment: the sequence's own end if it has no second one.

    The first segment consists of the first sentence, every sentence that ends before the middle, and half of the time
    the sentence across the middle. The middle is half the target length, so the short remainder of a document tends to
    be a single segment.
    """
    middle = starts + half
    first_sentence = np.minimum(sentence_ends[np.searchsorted(sentence_ends, starts, side="right")], ends)
    across = np.searchsorted(sentence_ends, middle, side="left")  # first sentence to end at or after the middle
    before = np.maximum(np.where(across > 0, sentence_ends[across - 1], 0), first_sentence)
    beyond = np.minimum(sentence_ends[np.minimum(across, len(sentence_ends) - 1)], ends)
    take_across = (random.random(len(starts)) < CROSS_MIDDLE) & (before < middle)
    return np.where(middle > ends, ends, np.where(take_across, beyond, before))


def _with_special_tokens(
    ids: np.ndarray, starts: np.ndarray, splits: np.ndarray, ends: np.ndarray, cls: int, sep: int
) -> tuple[np.ndarray, np.ndarray]:
    lengths = ends - starts + np.where(splits < ends, 3, 2)
    last = np.cumsum(lengths) - 1
    first = last + 1 - lengths
    special = np.zeros(int(lengths.sum()), np.bool_)
    special[first] = special[last] = special[first + 1 + splits - starts] = True
    out = np.full(len(special), sep, np.uint16)
    out[first] = cls
    out[~special] = ids
    return out, lengths.astype(np.int32)
