"""finetune/squad/features.py: windows cover the whole paragraph, and answers are recovered as written."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizerFast

from finetune.config import SquadConfig
from finetune.presets import settings_for
from finetune.squad.features import (
    cut_into_pieces,
    cut_into_windows,
    make_windows,
    target,
    window_of_most_context,
)
from finetune.squad.files import Answer, Question, SquadFile, read_squad
from tests.data_prep.conftest import write_byte_level_bpe

# Letters whose length changes when lower-cased or stripped of accents, scripts split into single pieces, odd marks.
LETTERS = [
    "a",
    "b",
    "Z",
    "é",
    "e\u0301",
    "o\u0323\u0302",
    "İ",
    "ß",
    "ﬁ",
    "中",
    "文",
    "한",
    "क",
    "कि",
    "7",
    "😀",
    "-",
    "’",
    "$",
    ".",
]
SPACES = [" ", "  ", "\n", "\t", "\u00a0", "\u2009", "\u202f", "\u3000", " \u200b ", "\r\n"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerFast:
    """A tokenizer that splits every word into letters; characters missing in its vocabulary become [UNK]."""
    letters = [*"abzeois7-.$’中文fi", "ss", "क", "ᄒ", "ᅡ", "ᆫ"]
    path = tmp_path_factory.mktemp("letters") / "vocab.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    path.write_text("\n".join([*special, *letters, *(f"##{letter}" for letter in letters)]) + "\n")
    return BertTokenizerFast(vocab=str(path))


def short(**changes: int | str) -> SquadConfig:
    return settings_for(SquadConfig, "SQuAD 2.0", 32, 512, {"max_length": 20, "max_question": 6, "stride": 4} | changes)


WORDS = st.lists(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=6).map("".join), min_size=1, max_size=8)


@settings(max_examples=100)
@given(words=WORDS, spaces=st.lists(st.sampled_from(SPACES), min_size=9, max_size=9), data=st.data())
def test_words_are_recovered_to_the_last_character(
    words: list[str], spaces: list[str], data: st.DataObject, tokenizer: BertTokenizerFast
) -> None:
    text, places = spaces[-1], []
    for word, space in zip(words, spaces, strict=False):
        places.append((len(text), len(text) + len(word)))
        text += word + space
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    begin, end = places[first][0], places[last][1]
    (pieces,) = cut_into_pieces([text], tokenizer)
    span = pieces.covering(begin, end)
    assert span is not None and pieces.text(text, *span) == text[begin:end]


def test_an_answer_of_byte_level_pieces_has_no_space_around_it(tmp_path: Path) -> None:
    text = "then  the\nday and\n the end"
    tokenizer = AutoTokenizer.from_pretrained(write_byte_level_bpe(tmp_path / "bpe"))
    (pieces,) = cut_into_pieces([text], tokenizer)
    for answer in ("the", "day and", "then  the", "end", "and\n the end"):
        begin = text.rindex(answer)
        span = pieces.covering(begin, begin + len(answer))
        assert span is not None and pieces.text(text, *span) == answer


@settings(max_examples=100)
@given(text=st.text(max_size=40))
def test_in_any_text_a_span_of_pieces_is_an_ordered_stretch_of_it(text: str, tokenizer: BertTokenizerFast) -> None:
    (pieces,) = cut_into_pieces([text], tokenizer)
    assert (np.diff(pieces.begin) >= 0).all()
    assert (np.diff(pieces.end) >= 0).all()
    assert ((pieces.begin >= 0) & (pieces.begin < pieces.end) & (pieces.end <= len(text))).all()
    for place in range(len(pieces.ids)):
        span = pieces.covering(int(pieces.begin[place]), int(pieces.end[place]))
        assert span is not None and span[0] <= place <= span[1]


def test_a_stretch_covers_no_neighbor_and_may_cover_nothing(tokenizer: BertTokenizerFast) -> None:
    (pieces,) = cut_into_pieces(["a \u200b b.a"], tokenizer)
    assert (pieces.covering(5, 6), pieces.covering(2, 3)) == ((2, 2), None)


@given(size=st.integers(0, 60), capacity=st.integers(1, 20), stride=st.integers(1, 30))
def test_windows_cover_everything_and_none_is_superfluous(size: int, capacity: int, stride: int) -> None:
    windows = cut_into_windows(size, capacity, stride)
    assert sorted({piece for window in windows for piece in window}) == list(range(size))
    assert all(len(window) <= capacity for window in windows)
    assert all(window.stop < size for window in windows[:-1])
    assert {right.start - left.start for left, right in pairwise(windows)} <= {min(stride, capacity)}


@given(size=st.integers(0, 60), capacity=st.integers(1, 20), stride=st.integers(1, 30))
def test_each_piece_belongs_to_the_window_with_most_context(size: int, capacity: int, stride: int) -> None:
    windows = cut_into_windows(size, capacity, stride)
    owner = window_of_most_context(windows, size)
    assert owner.shape == (size,)
    for piece in range(size):
        context = [
            min(piece - window.start, window.stop - 1 - piece) + 0.01 * len(window) if piece in window else -1
            for window in windows
        ]
        assert owner[piece] == context.index(max(context))


def example(answer: Answer | None, paragraph: str = "a b a . $ 7 a b z z e o i s . b a") -> SquadFile:
    return SquadFile([paragraph], [Question("q", "s o a b ?", 0, (answer,) if answer else ())])


def test_a_window_contains_the_question_and_part_of_the_paragraph(tokenizer: BertTokenizerFast) -> None:
    made = make_windows(example(Answer("i s .", 24)), tokenizer, short(), training=True)
    ids, segments, targets = made.features
    first = " ".join(tokenizer.convert_ids_to_tokens(ids[0]))
    assert first == "[CLS] s o a b [UNK] [SEP] a b a . $ 7 a b z z e o [SEP]"
    assert segments[0].tolist() == [0] * 7 + [1] * 13
    assert [len(row) for row in ids] == [20, 20, 17]
    assert targets == [(0, 0, False), (15, 17, False), (11, 13, False)]
    assert [window.pieces for window in made.windows] == [range(12), range(4, 16), range(8, 17)]


def test_a_long_question_is_truncated(tokenizer: BertTokenizerFast) -> None:
    made = make_windows(example(None), tokenizer, short(max_question=2), training=True)
    assert tokenizer.convert_ids_to_tokens(made.features.input_ids[0][:5]) == ["[CLS]", "s", "o", "[SEP]", "a"]


@pytest.mark.parametrize(("head", "label"), [("electra", False), ("xlnet", True)])
def test_a_window_without_the_whole_answer_points_to_cls(head: str, label: bool, tokenizer: BertTokenizerFast) -> None:
    made = make_windows(example(Answer("i s .", 24)), tokenizer, short(head=head), training=True)
    assert made.features.targets[0] == (0, 0, label)
    half_in = made.windows[0]._replace(pieces=range(13))
    assert target(half_in, (12, 14), False, short(head=head)) == (0, 0, label)


def test_a_question_without_answer_is_unanswerable_in_every_window_and_dev_windows_have_no_target(
    tokenizer: BertTokenizerFast,
) -> None:
    made = make_windows(example(None), tokenizer, short(), training=True)
    assert set(made.features.targets) == {(0, 0, True)}
    made = make_windows(example(Answer("z", 16)), tokenizer, short(), training=False)
    assert set(made.features.targets) == {(0, 0, False)}


def test_an_empty_paragraph_still_has_a_window(tokenizer: BertTokenizerFast) -> None:
    made = make_windows(example(None, paragraph=" "), tokenizer, short(), training=False)
    assert [window.pieces for window in made.windows] == [range(0)]


def test_targets_of_real_windows_are_their_answers(real_tokenizer: BertTokenizerFast, shared_data: Path) -> None:
    file = read_squad(shared_data / "squad" / "article_split" / "train-v2.0.json")
    few = SquadFile(file.paragraphs[:40], [question for question in file.questions if question.paragraph < 40])
    made = make_windows(few, real_tokenizer, settings_for(SquadConfig, "SQuAD 2.0", 256, 128, {}), training=True)
    assert len(made.windows) > len(few.questions) > 100
    pointing = set()
    for window, ids, (start, end, unanswerable) in zip(
        made.windows, made.features.input_ids, made.features.targets, strict=True
    ):
        answers = few.questions[window.question].answers
        assert len(ids) <= 128
        assert unanswerable == (not answers)
        if end:
            pointing.add(window.question)
            expected = real_tokenizer(answers[0].text, add_special_tokens=False).input_ids
            assert " ".join(map(str, expected)) in " ".join(map(str, ids[start : end + 1].tolist()))
    assert len(pointing) > 0.95 * sum(bool(question.answers) for question in few.questions)
    for place in range(len(few.questions)):
        best = np.concatenate([window.best for window in made.windows if window.question == place])
        assert best.sum() == len(made.paragraphs[few.questions[place].paragraph].ids)
