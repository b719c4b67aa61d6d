"""Token classification as a job, and the runs that a command asks for.

Shape letters: B batch, L length, C classes.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from finetune.config import FinetuneConfig, TaggingOptions
from finetune.presets import tagging_settings_for
from finetune.running.job import PIPELINE, Evaluation, HuggingFaceModel, Job, LoadedTask, Predictor, labels_of
from finetune.running.records import EXAMPLES
from finetune.tagging.features import TaggedFeatures, tokenize_sentences
from finetune.tagging.files import TaggingData, TaggingTask, load_tagging, select_task
from finetune.tagging.head import TokenClassifier
from finetune.tagging.metrics import count_matches, score
from finetune.tokens import IGNORED, Batch
from pretrain.engine.engine import Engine
from pretrain.model.encoder import ElectraEncoder

EVALUATION_BATCH = 128
"""Sentences per rank and forward pass; no gradients, so larger than in training."""
MAJORITY = "label_of_words_without_pieces"
"""Key of that label in a kept model's `config.json`."""


@dataclass(frozen=True, kw_only=True)
class TaggingJob(Job):
    """A token classification task with its tokenized sentences."""

    task: TaggingTask
    classes: tuple[str, ...]
    """Labels of the training file, sorted."""
    majority: str
    """The most frequent of them (O, for entities): the answer for words without pieces."""
    words_per_feature: float
    """Mean number of words that a training feature is scored on."""
    dev: TaggedFeatures
    test: tuple[str, TaggedFeatures] | None = None
    """Path of its predictions in the run's folder, and the sentences."""

    def build(self, encoder: ElectraEncoder) -> TokenClassifier:
        return TokenClassifier(encoder, len(self.classes))

    def losses(self, output_BLC: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy summed over the words of each feature, in units of the mean number of words.

        So every word weighs the same in sentences of any length, and an epoch's mean is the loss per word.
        """
        targets_BL = batch.target_B.long()
        losses_BL = F.cross_entropy(output_BLC.transpose(1, 2), targets_BL, reduction="none", ignore_index=IGNORED)
        return losses_BL.sum(1) / self.words_per_feature

    def evaluate(self, engine: Engine) -> Evaluation:
        return self.evaluate_split("dev", "dev.conll", self.dev, engine)

    def predict_tests(self, engine: Engine) -> Evaluation:
        return self.evaluate_split("test", *self.test, engine) if self.test else Evaluation({}, {})

    def to_hugging_face(self, head: Mapping[str, Tensor]) -> HuggingFaceModel:
        return HuggingFaceModel(
            "ElectraForTokenClassification",
            {f"classifier.{name}": weight for name, weight in head.items()},
            {**labels_of(self.classes), MAJORITY: self.majority},
            "token-classification",
            PIPELINE.format(task="token-classification", input='"A text.", aggregation_strategy="first"'),
        )

    def evaluate_split(self, split: str, path: str, tagged: TaggedFeatures, engine: Engine) -> Evaluation:
        """Scores a file; its predictions go to `path` in CoNLL columns: word, label, predicted label."""
        predicted = self.label(tagged, engine)
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

    def label(self, tagged: TaggedFeatures, predictor: Predictor) -> list[list[str]]:
        """Returns the predicted label of every word, by sentence, on every rank."""
        longest = max(map(len, tagged.features.targets), default=0)

        def answer(output_BLC: Tensor, batch: Batch, own: np.ndarray) -> Tensor:
            best_BL = output_BLC.argmax(dim=2)
            return F.pad(best_BL, (0, longest - best_BL.shape[1]))

        classes = self.answer_all(tagged.features, predictor, EVALUATION_BATCH, longest, answer).numpy()
        return tagged.label_words(classes, self.classes, self.majority)


def make_job(task: TaggingTask, data: TaggingData, tokenizer: Any, settings: FinetuneConfig) -> TaggingJob:
    """Tokenizes a task's sentences; returns them as a job."""
    counts = Counter(label for sentence in data.train for label in sentence.labels)
    classes = tuple(sorted(counts))
    numbers = {label: number for number, label in enumerate(classes)}
    files = {split: sentences for split, sentences in data._asdict().items() if sentences}
    tagged = {name: tokenize_sentences(part, numbers, tokenizer, settings.max_length) for name, part in files.items()}
    train, majority = tagged["train"], max(classes, key=counts.__getitem__)
    for name, part in tagged.items() if os.environ.get("RANK", "0") == "0" else ():
        if part.words_without_pieces:
            print(
                f"{task.name} {name}: {part.words_without_pieces} words without pieces count as {majority}", flush=True
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


def select(options: TaggingOptions) -> list[TaggingTask]:
    """Returns the task named in the options.

    Raises:
        ConfigError: as `select_task`.
    """
    return [select_task(options.task)]


def load(task: TaggingTask, options: TaggingOptions) -> LoadedTask:
    """Reads the files of a task.

    Raises:
        ConfigError: as `load_tagging`.
    """
    data = load_tagging(task, options.data_dir, test=options.predict_test)
    settings = partial(tagging_settings_for, task.name)
    return LoadedTask(task, data.fingerprint(), settings, partial(make_job, task, data), data.test_answers())
