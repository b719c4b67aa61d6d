"""Tagged sentences -> token ids with a target on the first piece of each word, and back to one label per word."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from finetune.tagging.files import Sentence
from finetune.tokens import IGNORED, Features

SPECIAL_TOKENS = 2
"""[CLS] and [SEP]."""


class TaggedFeatures(NamedTuple):
    """Sentences, or their parts, as token ids; targets hold a class per piece: `IGNORED` but on first pieces."""

    sentences: Sequence[Sentence]
    features: Features
    places: np.ndarray
    """For each first piece, in order: the place of its word among all words."""

    @property
    def words_without_pieces(self) -> int:
        """Number of words of which the tokenizer leaves nothing, such as control characters."""
        return sum(len(sentence.words) for sentence in self.sentences) - len(self.places)

    def label_words(self, predicted: np.ndarray, classes: Sequence[str], otherwise: str) -> list[list[str]]:
        """Returns the label of every word, by sentence, from the class of every position [features, longest feature].

        Words without pieces get `otherwise`.
        """
        labels = [otherwise] * sum(len(sentence.words) for sentence in self.sentences)
        rows = zip(predicted, self.features.targets, strict=True)
        found = chain.from_iterable(row[: len(targets)][targets != IGNORED] for row, targets in rows)
        for place, label in zip(self.places.tolist(), found, strict=True):
            labels[place] = classes[int(label)]
        rest = iter(labels)
        return [[next(rest) for _ in sentence.words] for sentence in self.sentences]


def cut_sentence(sizes: Sequence[int], capacity: int) -> Iterator[range]:
    """Yields ranges of words, each as many as fit in `capacity` pieces; a longer word is its own range."""
    first = used = 0
    for place, size in enumerate(sizes):
        if used and used + size > capacity:
            yield range(first, place)
            first, used = place, 0
        used += size
    if used:
        yield range(first, len(sizes))


def tokenize_sentences(
    sentences: Sequence[Sentence], classes: Mapping[str, int], tokenizer: Any, max_length: int
) -> TaggedFeatures:
    """Tokenizes every sentence; one longer than `max_length` becomes several parts, with each word in one part.

    A word longer than a part keeps its first pieces. A label outside `classes` does not occur in the training file; its
    target only marks the position.
    """
    capacity = max_length - SPECIAL_TOKENS
    encoded = tokenizer(
        [list(sentence.words) for sentence in sentences],
        is_split_into_words=True,
        add_special_tokens=False,
        verbose=False,
    )
    made, places, before = Features([], [], []), [], 0
    for number, sentence in enumerate(sentences):
        ids = np.array(encoded["input_ids"][number], dtype=np.int32)
        words, starts = np.unique(np.array(encoded.word_ids(number), dtype=np.int64), return_index=True)
        bounds = [*starts.tolist(), len(ids)]
        for part in cut_sentence(np.diff(bounds).tolist(), capacity):
            begin, end = bounds[part.start], min(bounds[part.stop], bounds[part.start] + capacity)
            targets = np.full(end - begin + SPECIAL_TOKENS, IGNORED)
            targets[1 + starts[part.start : part.stop] - begin] = [
                classes.get(sentence.labels[word], 0) for word in words[part.start : part.stop]
            ]
            made.input_ids.append(np.concatenate([[tokenizer.cls_token_id], ids[begin:end], [tokenizer.sep_token_id]]))
            made.token_type_ids.append(np.zeros(len(targets), dtype=np.int8))
            made.targets.append(targets)
        places.append(before + words)
        before += len(sentence.words)
    return TaggedFeatures(sentences, made, np.concatenate(places))
