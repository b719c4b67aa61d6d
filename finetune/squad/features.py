"""Converts SQuAD questions to windows of token ids, and spans of word pieces back to the original text.

A window is [CLS] question [SEP] part of the paragraph [SEP]. Windows start `stride` pieces apart and together cover the
whole paragraph; google-research/electra's `qa_tasks.py` (after BERT's `run_squad.py`) sets the rules.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import regex

from finetune.config import SquadConfig
from finetune.presets import HEAD_KINDS
from finetune.running.job import Features
from finetune.squad.files import SquadFile

MARKS = regex.compile(r"\p{Mn}*")
"""Matches Unicode's combining marks."""
TEXTS_AT_ONCE = 1_000
"""Texts tokenized per call. Few, as the tokenizer's offsets take ten times the memory of the resulting arrays."""


class Pieces(NamedTuple):
    """A text's word pieces: their ids, and the characters [begin, end) of the original text that each covers."""

    ids: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def covering(self, begin: int, end: int) -> tuple[int, int] | None:
        """Returns the first and last piece that share a character with [begin, end); `None` if there is none."""
        inside = np.flatnonzero((self.end > begin) & (self.begin < end))
        return (int(inside[0]), int(inside[-1])) if len(inside) else None

    def text(self, original: str, first: int, last: int) -> str:
        """Returns the part of `original` from piece `first` through piece `last`, without white space around it.

        Pieces of a byte-level BPE hold the space before a word.
        """
        return original[self.begin[first] : self.end[last]].strip()


class Window(NamedTuple):
    """A part of a paragraph that a model sees at once."""

    question: int
    """Index of its question in the file."""
    pieces: range
    """Range of the paragraph's word pieces in the window."""
    position: int
    """Position of the first of these pieces in the input."""
    best: np.ndarray
    """Whether each piece has most context in this window; an answer may start only at such a piece."""


class Windows(NamedTuple):
    """The windows of a file. Targets are (start, end, unanswerable): start and end positions, 0 ([CLS]) for none."""

    windows: list[Window]
    features: Features
    paragraphs: list[Pieces]


def cut_into_pieces(texts: Sequence[str], tokenizer: Any) -> Iterator[Pieces]:
    """Yields the word pieces of each text with their character offsets.

    A combining mark, which the tokenizer drops, belongs to the piece before it.
    """
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = list(texts[start : start + TEXTS_AT_ONCE])
        encoded = tokenizer(part, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for text, ids, offsets in zip(part, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            places = np.array(offsets, dtype=np.int32).reshape(-1, 2)
            ends = [MARKS.match(text, end).end() for end in places[:, 1].tolist()]
            yield Pieces(np.array(ids, dtype=np.int32), places[:, 0], np.array(ends, dtype=np.int32))


def cut_into_windows(size: int, capacity: int, stride: int) -> list[range]:
    """Returns ranges of at most `capacity` that start `stride` apart and cover range(size); at least one range."""
    step = min(stride, capacity)
    return [range(start, min(start + capacity, size)) for start in range(0, max(0, size - capacity) + step, step)]


def window_of_most_context(windows: Sequence[range], size: int) -> np.ndarray:
    """Returns, for each piece, the index of the window in which it has most context; a tie goes to the first window.

    Context is the number of pieces to the left or right, whichever is smaller, plus .01 times the window's length.
    """
    piece = np.arange(size)
    context = [
        np.where(
            (piece >= window.start) & (piece < window.stop),
            np.minimum(piece - window.start, window.stop - 1 - piece) + 0.01 * len(window),
            -1.0,
        )
        for window in windows
    ]
    return np.argmax(context, axis=0)


def make_windows(file: SquadFile, tokenizer: Any, settings: SquadConfig, *, training: bool) -> Windows:
    """Returns the windows of every question; for training, the first answer is their target."""
    paragraphs = list(cut_into_pieces(file.paragraphs, tokenizer))
    made = Windows([], Features([], [], []), paragraphs)
    texts = [question.text for question in file.questions]
    for place, asked in enumerate(cut_into_pieces(texts, tokenizer)):
        question, paragraph = file.questions[place], paragraphs[file.questions[place].paragraph]
        head = [tokenizer.cls_token_id, *asked.ids[: settings.max_question], tokenizer.sep_token_id]
        ranges = cut_into_windows(len(paragraph.ids), settings.max_length - len(head) - 1, settings.stride)
        owner = window_of_most_context(ranges, len(paragraph.ids))
        answer = question.answers[0] if training and question.answers else None
        span = paragraph.covering(answer.start, answer.start + len(answer.text)) if answer else None
        for number, pieces in enumerate(ranges):
            window = Window(place, pieces, len(head), owner[pieces.start : pieces.stop] == number)
            ids = np.concatenate([head, paragraph.ids[pieces.start : pieces.stop], [tokenizer.sep_token_id]])
            made.windows.append(window)
            made.features.input_ids.append(ids.astype(np.int32))
            made.features.token_type_ids.append((np.arange(len(ids)) >= len(head)).astype(np.int8))
            made.features.targets.append(target(window, span, not question.answers, settings))
    return made


def target(
    window: Window, span: tuple[int, int] | None, unanswerable: bool, settings: SquadConfig
) -> tuple[int, int, bool]:
    """Returns a window's target (start, end, unanswerable), given the answer's first and last piece in the paragraph.

    In a window without the whole answer, start and end are [CLS]; `unanswerable` then depends on the settings.
    """
    if span and span[0] in window.pieces and span[1] in window.pieces:
        shift = window.position - window.pieces.start
        return span[0] + shift, span[1] + shift, False
    return 0, 0, unanswerable or HEAD_KINDS[settings.head].unanswerable_outside
