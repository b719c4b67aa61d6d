"""A GLUE task as a run needs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from finetune.config import GlueConfig
from finetune.glue.heads import SequenceClassifier, example_losses, predictions
from finetune.glue.metrics import is_constant, score, submission
from finetune.glue.tasks import Example, ExampleSet, GlueTask, TaskData
from finetune.running.job import Evaluation, Job
from finetune.running.records import EXAMPLES, Metrics
from finetune.tokens.features import Batch, Features
from pretrain.engine.engine import Engine
from pretrain.model.encoder import ElectraEncoder

EVALUATION_BATCH = 128
"""Dev examples per rank and forward pass; no gradients, so larger than in training."""


@dataclass(frozen=True)
class GlueJob(Job):
    """A task's tokenised examples; `dev` by split, `tests` by the path of their predictions in the run's folder.

    Targets and predictions of a regression are fractions of the highest score, whatever the model learns.
    """

    task: GlueTask
    settings: GlueConfig
    dev: dict[str, Features]
    tests: dict[str, tuple[ExampleSet, Features]]

    @property
    def unit(self) -> float:
        """The model's output for the highest score."""
        return self.task.max_score if self.task.max_score and self.settings.plain_scores else 1.0

    def build(self, encoder: ElectraEncoder) -> SequenceClassifier:
        return SequenceClassifier(encoder, len(self.task.classes) or 1, self.settings.head)

    def losses(self, output_BC: torch.Tensor, batch: Batch) -> torch.Tensor:
        return example_losses(output_BC, batch.target_B * self.unit)

    def evaluate(self, engine: Engine) -> Evaluation:
        predicted = {split: self.predict(features, engine) for split, features in self.dev.items()}
        target = {split: features.targets for split, features in self.dev.items()}
        return Evaluation(
            {split: score(self.task.metrics, np.array(target[split]), predicted[split]) for split in self.dev},
            {
                EXAMPLES: {
                    split: {"predicted": predicted[split].tolist(), "target": target[split]} for split in self.dev
                }
            },
            constant=all(map(is_constant, predicted.values())),
        )

    def predict_tests(self, engine: Engine) -> Evaluation:
        metrics: Metrics = {}
        files = {}
        for path, (tests, features) in self.tests.items():
            predicted = self.predict(features, engine)
            files[path] = submission(tests.task, tests.indices, predicted)
            target = np.array(features.targets)
            if not np.isnan(target).any():
                metrics[PurePath(path).stem] = score(tests.task.metrics, target, predicted)
        return Evaluation(metrics, files)

    def predict(self, features: Features, engine: Engine) -> np.ndarray:
        """The prediction for every example, in order, on every rank; a diverged run answers 0."""
        answers = self.answer_all(
            features, engine, EVALUATION_BATCH, 1, lambda output, *_: predictions(output)[:, None]
        )
        return np.nan_to_num(answers[:, 0].numpy()) / self.unit


def make_job(task: GlueTask, data: TaskData, tokenizer: Any, settings: GlueConfig) -> GlueJob:
    """Tokenises a task's examples."""

    def features(examples: Sequence[Example]) -> Features:
        return tokenize_examples(examples, tokenizer, settings.max_length)

    train = data.train
    if settings.both_orders and task.unordered:
        train = train + [example._replace(texts=example.texts[::-1]) for example in train]
    return GlueJob(
        task=task,
        settings=settings,
        train=features(train),
        train_examples=len(data.train),
        left_out=data.left_out,
        pad_id=tokenizer.pad_token_id,
        dev={split: features(examples) for split, examples in data.dev.items()},
        tests={path: (tests, features(tests.examples)) for path, tests in data.tests_by_path().items()},
    )


def tokenize_examples(examples: Sequence[Example], tokenizer: Any, max_length: int) -> Features:
    """Tokenises one text or a pair; a pair too long loses pieces from the end of the longer text."""
    columns = [list(column) for column in zip(*(example.texts for example in examples), strict=True)]
    encoded = tokenizer(
        *columns,
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    return Features(encoded["input_ids"], encoded["token_type_ids"], [example.target for example in examples])
