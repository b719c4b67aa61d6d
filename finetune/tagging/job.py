"""Token classification as a job: features, head, predictions, metrics, and the task that a command asks for.

Shape letters: B batch, L length, H hidden size, C classes.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from torch import Tensor, nn

from finetune.config import FinetuneConfig, TaggingOptions
from finetune.running.job import (
    IGNORED,
    PIPELINE,
    Batch,
    Evaluation,
    Features,
    HuggingFaceModel,
    Job,
    LoadedTask,
    labels_of,
)
from finetune.running.records import EXAMPLES
from finetune.tagging.files import TASKS, Sentence, TaggingData, TaggingTask, load_tagging
from pretrain.job.processes import World
from pretrain.model import ops
from pretrain.model.encoder import Encoder

EVALUATION_BATCH = 128
"""Sentences per rank and forward pass; no gradients, so larger than in training."""
SPECIAL_TOKENS = 2
"""[CLS] and [SEP]."""
Labels = Sequence[Sequence[str]]
"""The label of each word, by sentence."""


class TaggedFeatures(NamedTuple):
    """Sentences, or parts of long ones, as token ids; targets are the class at a word's first piece, else `IGNORED`."""

    sentences: Sequence[Sentence]
    features: Features
    places: np.ndarray
    """For each word's first piece, in order: the index of the word among all words."""

    @property
    def words_without_pieces(self) -> int:
        """Number of words for which the tokenizer gives no word piece, such as control characters."""
        return sum(len(sentence.words) for sentence in self.sentences) - len(self.places)

    def label_words(self, predicted: np.ndarray, classes: Sequence[str], otherwise: str) -> list[list[str]]:
        """Returns the label of every word, by sentence; words without pieces get `otherwise`.

        `predicted` is the class of every position [features, length of the longest feature].
        """
        labels = [otherwise] * sum(len(sentence.words) for sentence in self.sentences)
        rows = zip(predicted, self.features.targets, strict=True)
        found = chain.from_iterable(row[: len(targets)][targets != IGNORED] for row, targets in rows)
        for place, label in zip(self.places.tolist(), found, strict=True):
            labels[place] = classes[int(label)]
        rest = iter(labels)
        return [[next(rest) for _ in sentence.words] for sentence in self.sentences]


def cut_sentence(sizes: Sequence[int], capacity: int) -> Iterator[range]:
    """Yields ranges of words that fit in `capacity` pieces, given the pieces of each; a longer word is alone."""
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
    """Tokenizes every sentence as if a space stood between its words; one longer than `max_length` becomes several
    parts, with each word in one part.

    A word longer than a part keeps only its first pieces. Labels outside `classes`, which the training file lacks, get
    the target 0, which only marks the position.
    """
    capacity = max_length - SPECIAL_TOKENS
    # pieces of a byte-level BPE hold the space before them; some tokenizers add it to each text themselves
    gap = " " * (tokenizer.tokenize("a a") != 2 * tokenizer.tokenize("a"))
    encoded = tokenizer(
        [[gap * (place > 0) + word for place, word in enumerate(sentence.words)] for sentence in sentences],
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


class TokenClassifier(nn.Module):
    """Encoder and head: maps a batch to logits [B, L, C] in fp32.

    The head is that of Hugging Face's `ElectraForTokenClassification`, dropout and one linear layer.
    """

    def __init__(self, encoder: Encoder, num_classes: int) -> None:
        super().__init__()
        self.electra = encoder
        self.dropout = nn.Dropout(encoder.config.hidden_dropout_prob)
        self.head = ops.Linear(encoder.config.hidden_size, num_classes)
        nn.init.normal_(self.head.weight, std=encoder.config.initializer_range)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        hidden_BLH = self.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.head(self.dropout(hidden_BLH)).float()


@dataclass(frozen=True, kw_only=True)
class TaggingJob(Job):
    """A token classification task with its tokenized sentences."""

    task: TaggingTask
    classes: tuple[str, ...]
    """Labels of the training file, sorted."""
    majority: str
    """The most frequent label (for entities, O), which is predicted for words without pieces."""
    words_per_feature: float
    """Mean number of words per training feature."""
    dev: TaggedFeatures
    test: tuple[str, TaggedFeatures] | None = None
    """Test sentences, after the path of their predictions in the run's folder."""

    def build(self, encoder: Encoder) -> TokenClassifier:
        return TokenClassifier(encoder, len(self.classes))

    def losses(self, output_BLC: Tensor, batch: Batch) -> Tensor:
        """Returns each feature's cross-entropy [B], summed over its words, divided by the mean number of words.

        So all words have equal weight, whatever the sentence's length, and an epoch's mean is the loss per word.
        """
        losses_BL = F.cross_entropy(
            output_BLC.transpose(1, 2), batch.target_B.long(), reduction="none", ignore_index=IGNORED
        )
        return losses_BL.sum(1) / self.words_per_feature

    def evaluate(self, model: nn.Module, world: World) -> Evaluation:
        return self.evaluate_split("dev", "dev.conll", self.dev, model, world)

    def predict_tests(self, model: nn.Module, world: World) -> Evaluation:
        return self.evaluate_split("test", *self.test, model, world) if self.test else Evaluation({}, {})

    def to_hugging_face(self, head: Mapping[str, Tensor]) -> HuggingFaceModel:
        return HuggingFaceModel(
            "ElectraForTokenClassification",
            {f"classifier.{name}": weight for name, weight in head.items()},
            labels_of(self.classes),
            "token-classification",
            PIPELINE.format(task="token-classification", input='"A text.", aggregation_strategy="first"'),
        )

    def evaluate_split(
        self, split: str, path: str, tagged: TaggedFeatures, model: nn.Module, world: World
    ) -> Evaluation:
        """Scores a split; its predictions are kept as `path`, in CoNLL columns: word, label, predicted label."""
        predicted = self.label(tagged, model, world)
        target = [list(sentence.labels) for sentence in tagged.sentences]
        blocks = (
            "".join(f"{word}\t{label}\t{found}\n" for word, label, found in zip(*sentence, labels, strict=True))
            for sentence, labels in zip(tagged.sentences, predicted, strict=True)
        )
        files: dict[str, Any] = {path: "\n".join(blocks)}
        if split == "dev":
            files[EXAMPLES] = {split: count_matches(self.task, target, predicted)}
        return Evaluation(
            {split: score(self.task, target, predicted)},
            files,
            constant=len({label for labels in predicted for label in labels}) == 1,
        )

    def label(self, tagged: TaggedFeatures, model: nn.Module, world: World) -> list[list[str]]:
        """Returns the predicted label of every word, by sentence, on every rank."""
        longest = max(map(len, tagged.features.targets), default=0)

        def answer(output_BLC: Tensor, batch: Batch, own: np.ndarray) -> Tensor:
            best_BL = output_BLC.argmax(dim=2)
            return F.pad(best_BL, (0, longest - best_BL.shape[1]))

        classes = self.answer_all(tagged.features, model, world, EVALUATION_BATCH, longest, answer).numpy()
        return tagged.label_words(classes, self.classes, self.majority)


def make_job(task: TaggingTask, data: TaggingData, tokenizer: Any, settings: FinetuneConfig) -> TaggingJob:
    """Tokenizes a task's sentences; returns them as a job."""
    counts = Counter(label for sentence in data.train for label in sentence.labels)
    classes = tuple(sorted(counts))
    numbers = {label: number for number, label in enumerate(classes)}
    tagged = {
        name: tokenize_sentences(sentences, numbers, tokenizer, settings.max_length)
        for name, sentences in data._asdict().items()
        if sentences
    }
    train, majority = tagged["train"], max(classes, key=counts.__getitem__)
    for name, part in tagged.items() if os.environ.get("RANK", "0") == "0" else ():
        if part.words_without_pieces:
            print(
                f"{task.name} {name}: {part.words_without_pieces} words from which the tokenizer makes no piece are"
                f" labeled {majority}",
                flush=True,
            )
    return TaggingJob(
        task=task,
        train=train.features,
        train_examples=len(data.train),
        pad_id=tokenizer.pad_token_id,
        classes=classes,
        majority=majority,
        words_per_feature=len(train.places) / len(train.features.targets),
        dev=tagged["dev"],
        test=(data.test_answers()[0], tagged["test"]) if data.test else None,
    )


def score(task: TaggingTask, target: Labels, predicted: Labels) -> dict[str, float]:
    """Returns the task's metrics by name."""
    if not task.entities:
        return {"accuracy": float(accuracy_score(target, predicted))}
    measures = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    return {name: float(measure(target, predicted, zero_division=0)) for name, measure in measures.items()}


def count_matches(task: TaggingTask, target: Labels, predicted: Labels) -> dict[str, list[int]]:
    """Counts each sentence's entities or words: `wanted` in the target, `found` in the prediction, `matched` in both.

    From their sums, precision is matched / found, and recall and accuracy are matched / wanted.
    """
    spans = get_entities if task.entities else enumerate
    sets = [(set(spans(wanted)), set(spans(found))) for wanted, found in zip(target, predicted, strict=True)]
    return {
        "wanted": [len(wanted) for wanted, _ in sets],
        "found": [len(found) for _, found in sets],
        "matched": [len(wanted & found) for wanted, found in sets],
    }


def load(options: TaggingOptions) -> Iterator[LoadedTask]:
    """Reads the files of the chosen task; yields it.

    Raises:
        ConfigError: as `load_tagging`.
    """
    task = TASKS[options.task]
    data = load_tagging(task, options.data_dir, test=options.predict_test)
    yield LoadedTask(task, data.fingerprint(), partial(make_job, task, data), data.test_answers())
