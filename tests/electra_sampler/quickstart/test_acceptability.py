"""Claims about the acceptability task."""

import random
from collections import Counter
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from electra_sampler.quickstart.acceptability import (
    DEV_SIZE,
    INTACT,
    SWAPPED,
    TRAIN_SIZE,
    examples,
    sentences,
    swap_two_words,
    write_task,
)


def numbered_text(count: int) -> str:
    """`count` distinct sentences with numbers spelled in letters, because words consist of letters."""
    spelt = ("".join("abcdefghij"[int(digit)] for digit in str(i)) for i in range(count))
    return "\n".join(f"The sentence called {name} is one of many." for name in spelt)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(numbered_text(TRAIN_SIZE + DEV_SIZE + 5), folder / "CoLA")
    return folder


def rows(folder: Path, name: str) -> list[list[str]]:
    return [line.split("\t") for line in (folder / "CoLA" / name).read_text().splitlines()]


@pytest.mark.parametrize(("name", "size"), [("train.tsv", TRAIN_SIZE), ("dev.tsv", DEV_SIZE)])
def test_a_file_has_colas_four_columns_no_header_and_as_many_swapped_sentences_as_intact_ones(
    task: Path, name: str, size: int
) -> None:
    kinds = Counter((label, mark) for _, label, mark, _ in rows(task, name))
    assert kinds == {("1", ""): size / 2, ("0", "*"): size / 2}


def test_no_sentence_is_in_both_files_in_any_word_order(task: Path) -> None:
    bags = {name: {tuple(sorted(words(row[3]))) for row in rows(task, name)} for name in ("train.tsv", "dev.tsv")}
    assert len(bags["train.tsv"]) == TRAIN_SIZE
    assert not bags["train.tsv"] & bags["dev.tsv"]


def test_equal_seeds_write_equal_tasks_and_other_seeds_others() -> None:
    texts = numbered_text(50).splitlines()
    assert examples(texts, random.Random(1)) == examples(texts, random.Random(1))
    assert examples(texts, random.Random(1)) != examples(texts, random.Random(2))


def test_an_intact_sentence_is_unchanged_and_a_swapped_one_differs() -> None:
    texts = numbered_text(50).splitlines()
    for label, sentence in examples(texts, random.Random(0)):
        assert (sentence in texts) == (label == INTACT)
        assert label in (INTACT, SWAPPED)


def test_a_swap_exchanges_exactly_two_different_words_and_moves_no_punctuation() -> None:
    sentence = "The cat, the dog (and the bird) sat; the mouse ran."
    for seed in range(100):
        swapped = swap_two_words(sentence, random.Random(seed))
        changed = [(a, b) for a, b in zip(words(sentence), words(swapped), strict=True) if a != b]
        assert len(changed) == 2
        assert changed[0] == changed[1][::-1]
        assert marks(swapped) == marks(sentence)


def words(sentence: str) -> list[str]:
    return "".join(c if c.isalpha() else " " for c in sentence).split()


def marks(sentence: str) -> list[str]:
    return [c for c in sentence if c in ",;()."]


def test_sentences_have_five_to_twenty_words_and_each_occurs_once() -> None:
    long = "A " + "very " * 20 + "long sentence of many different words."
    text = f"Too short here. This one is of the right length. {long}\nThis one is of the right length.\n"
    assert list(sentences(text)) == ["This one is of the right length."]


def test_too_little_text_is_a_config_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}: got 10 sentences of 5 to 20 words, expected at least 3750"):
        write_task(numbered_text(10), tmp_path)
