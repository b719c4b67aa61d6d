"""A GLUE task as a run needs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from finetune.config import GlueConfig
from finetune.glue.heads import SequenceClassifier, example_losses, predictions
from finetune.glue.metrics import is_constant, score
from finetune.glue.submission import submission
from finetune.glue.tasks import Task, TaskData, UnseenSet
from finetune.running.job import Evaluation, Predicted
from finetune.running.records import EXAMPLES, Metrics
from finetune.tokens.examples import Example
from finetune.tokens.features import Batch, Features, collate, shares, tokenize_examples
from pretrain.engine.engine import Engine
from pretrain.model.encoder import ElectraEncoder

EVALUATION_BATCH = 128
"""Dev examples a rank scores at once; no gradients, so larger than in training."""


@dataclass(frozen=True)
class GlueJob:
    """A task's tokenised examples; `dev` by split, `tests` by where their predictions go in the run's folder.

    Targets and predictions of a regression are fractions of the highest score, whatever the model learns.
    """

    task: Task
    settings: GlueConfig
    train: Features
    train_examples: int
    """Rows of the training file; the features are twice as many with both orders."""
    dev: dict[str, Features]
    pad_id: int
    tests: dict[str, tuple[UnseenSet, Features]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def unit(self) -> float:
        """What the model says where the score is the highest."""
        return self.task.max_score if self.task.max_score and self.settings.plain_scores else 1.0

    def build(self, encoder: ElectraEncoder) -> SequenceClassifier:
        return SequenceClassifier(encoder, self.task.num_outputs, self.settings.head)

    def losses(self, output_BC: torch.Tensor, batch: Batch) -> torch.Tensor:
        return example_losses(output_BC, batch.target_B * self.unit)

    def evaluate(self, engine: Engine) -> Evaluation:
        metrics: Metrics = {}
        examples = {}
        constant = True
        for split, features in self.dev.items():
            predicted = self.predict(features, engine)
            metrics[split] = score(self.task.metrics, np.array(features.targets), predicted)
            examples[split] = {"predicted": predicted.tolist(), "target": list(features.targets)}
            constant &= is_constant(predicted)
        return Evaluation(metrics, constant, {EXAMPLES: examples})

    def predict_tests(self, engine: Engine) -> Predicted:
        metrics: Metrics = {}
        files = {}
        for path, (tests, features) in self.tests.items():
            predicted = self.predict(features, engine)
            files[path] = submission(tests.task, tests.indices, predicted)
            target = np.array(features.targets)
            if not np.isnan(target).any():
                metrics[PurePath(path).stem] = score(tests.task.metrics, target, predicted)
        return Predicted(metrics, files)

    @torch.inference_mode()
    def predict(self, features: Features, engine: Engine) -> np.ndarray:
        """The prediction for every example, in order, on every rank; a diverged run answers 0."""
        world = engine.world
        predicted = torch.zeros(len(features.targets), dtype=torch.float64, device=world.device)
        for own in shares(features, world, EVALUATION_BATCH):
            output_B = predictions(engine.module(collate(features, own, self.pad_id, world.device)))
            predicted[torch.from_numpy(own)] = output_B[: len(own)].double()
        return np.nan_to_num(engine.sum_over_ranks(predicted).cpu().numpy()) / self.unit


def make_job(task: Task, data: TaskData, tokenizer: Any, settings: GlueConfig) -> GlueJob:
    """Tokenises a task's examples."""

    def features(examples: Sequence[Example]) -> Features:
        return tokenize_examples(examples, tokenizer, settings.max_length)

    train = data.train
    if settings.both_orders and task.unordered:
        train = train + [example._replace(texts=example.texts[::-1]) for example in train]
    return GlueJob(
        task,
        settings,
        features(train),
        len(data.train),
        {split: features(examples) for split, examples in data.dev.items()},
        tokenizer.pad_token_id,
        {path: (tests, features(tests.examples)) for path, tests in data.tests_by_path().items()},
        data.left_out,
    )
