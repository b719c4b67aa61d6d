"""finetune/tagging/job.py: every word once, its label on its first piece, whatever the length."""

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.tagging.files import TASKS, Sentence, read_tagged
from finetune.tagging.job import SPECIAL_TOKENS, cut_sentence, tokenize_sentences
from finetune.tokens import IGNORED
from pretrain.huggingface.folders import load_tokenizer

CLASSES = {"A": 0, "B": 1}


@pytest.fixture(scope="module")
def tokenizer(stock_model: Path) -> Any:
    return load_tokenizer(stock_model)


def test_the_first_piece_carries_the_label_and_other_pieces_are_ignored(tokenizer: Any) -> None:
    tagged = tokenize_sentences([Sentence(("good", "word1,.", "bad"), ("A", "B", "A"))], CLASSES, tokenizer, 16)
    (ids,), (targets,) = tagged.features.input_ids, tagged.features.targets
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "good", "word1", ",", ".", "bad", "[SEP]"]
    assert targets.tolist() == [IGNORED, 0, 1, IGNORED, IGNORED, 0, IGNORED]
    assert tagged.places.tolist() == [0, 1, 2]


def test_a_long_sentence_is_cut_between_words_and_a_longer_word_keeps_its_first_pieces(tokenizer: Any) -> None:
    words = ("good", "word1,.", "word2", "." * 9, "bad")
    tagged = tokenize_sentences([Sentence(words, tuple("ABABA"))], CLASSES, tokenizer, 6)
    parts = [tokenizer.convert_ids_to_tokens(ids[1:-1]) for ids in tagged.features.input_ids]
    assert parts == [["good", "word1", ",", "."], ["word2"], ["."] * 4, ["bad"]]
    assert [row[row != IGNORED].tolist() for row in tagged.features.targets] == [[0, 1], [0], [1], [0]]


def test_a_word_without_pieces_is_counted_and_gets_the_label_given_for_it(tokenizer: Any) -> None:
    sentences = [Sentence(("\u200d", "good", "\x07"), ("A", "B", "A")), Sentence(("\u200d",), ("B",))]
    tagged = tokenize_sentences(sentences, CLASSES, tokenizer, 16)
    assert tagged.words_without_pieces == 3
    assert len(tagged.features.targets) == 1  # nothing is left of the second
    predicted = np.array([[0, 1, 0, 0]])
    assert tagged.label_words(predicted, ("A", "B"), "other") == [["other", "B", "other"], ["other"]]


def test_a_label_that_is_not_in_the_training_file_marks_its_word(tokenizer: Any) -> None:
    tagged = tokenize_sentences([Sentence(("good", "bad"), ("new", "B"))], CLASSES, tokenizer, 16)
    assert (tagged.features.targets[0] != IGNORED).tolist() == [False, True, True, False]


def test_every_word_is_scored_exactly_once_in_its_order_on_random_sentences(tokenizer: Any) -> None:
    """Each class number is a word's own: what comes back is what went in, for any lengths and splits."""
    random = np.random.default_rng(0)
    for _ in range(50):
        sentences, classes = [], {}
        for number in range(int(random.integers(1, 6))):
            words = [
                "\u200d" if random.random() < 0.1 else "word1" + "," * int(random.integers(0, 9))
                for _ in range(int(random.integers(1, 20)))
            ]
            labels = tuple(f"{number}-{place}" for place in range(len(words)))
            classes |= {label: len(classes) + place for place, label in enumerate(labels)}
            sentences.append(Sentence(tuple(words), labels))
        max_length = int(random.integers(8, 33))
        tagged = tokenize_sentences(sentences, classes, tokenizer, max_length)
        longest = max(map(len, tagged.features.targets), default=0)
        assert longest <= max_length
        answers = np.stack([np.pad(row, (0, longest - len(row))) for row in tagged.features.targets])
        found = tagged.label_words(answers, list(classes), "none")
        expected = [
            ["none" if word == "\u200d" else label for word, label in zip(sentence.words, sentence.labels, strict=True)]
            for sentence in sentences
        ]
        assert found == expected


def test_parts_are_as_long_as_they_may_be() -> None:
    assert list(cut_sentence([2, 2, 1, 5, 9, 1], 5)) == [range(3), range(3, 4), range(4, 5), range(5, 6)]
    assert list(cut_sentence([], 5)) == []


def test_real_tweets_fit_the_length_and_lose_no_word(pretrained_model: Path, shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.conll").write_bytes(
        lzma.decompress((shared_data / "ner" / "wnut17" / "dev.conll.xz").read_bytes())
    )
    sentences = read_tagged(tmp_path / "dev.conll", TASKS["NER"])
    tokenizer = load_tokenizer(pretrained_model)
    classes = {"O": 0}
    tagged = tokenize_sentences(sentences, classes, tokenizer, 24)
    assert len(tagged.features.targets) > len(sentences)
    assert max(map(len, tagged.features.input_ids)) == 24
    words = [word for sentence in sentences for word in sentence.words]
    gone = set(range(len(words))) - set(tagged.places.tolist())
    assert len(gone) == tagged.words_without_pieces
    assert all(not tokenizer(words[place], add_special_tokens=False).input_ids for place in gone)
    assert sum(len(ids) - SPECIAL_TOKENS for ids in tagged.features.input_ids) <= sum(
        len(tokenizer(word, add_special_tokens=False).input_ids) for word in words
    )
