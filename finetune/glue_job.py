"""A GLUE task as a run needs it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from finetune.config import FinetuneConfig
from finetune.features import Batch, Features, collate, shares, tokenize_examples
from finetune.heads import SequenceClassifier, example_losses, predictions
from finetune.job import Evaluation
from finetune.metrics import is_constant, score
from finetune.records import Metrics
from finetune.tasks.glue import Task, TaskData
from pretrain.encoder import ElectraEncoder
from pretrain.engine import Engine

EVALUATION_BATCH = 128
"""Dev examples a rank scores at once; no gradients, so larger than in training."""


@dataclass(frozen=True)
class GlueJob:
    """A task's tokenised examples; `dev` by split."""

    task: Task
    train: Features
    train_examples: int
    """Rows of the training file; the features are twice as many with both orders."""
    dev: dict[str, Features]
    pad_id: int

    def build(self, encoder: ElectraEncoder) -> SequenceClassifier:
        return SequenceClassifier(encoder, self.task.num_outputs)

    def losses(self, output_BC: torch.Tensor, batch: Batch) -> torch.Tensor:
        return example_losses(output_BC, batch.target_B)

    def evaluate(self, engine: Engine) -> Evaluation:
        metrics: Metrics = {}
        constant = True
        for split, features in self.dev.items():
            predicted = np.nan_to_num(self.predict(features, engine))  # a diverged run answers 0
            metrics[split] = score(self.task.metrics, np.array(features.targets), predicted)
            constant &= is_constant(predicted)
        return Evaluation(metrics, constant, {})

    @torch.inference_mode()
    def predict(self, features: Features, engine: Engine) -> np.ndarray:
        """The prediction for every example, in order, on every rank."""
        world = engine.world
        predicted = torch.zeros(len(features.targets), dtype=torch.float64, device=world.device)
        for own in shares(features, world, EVALUATION_BATCH):
            output_B = predictions(engine.module(collate(features, own, self.pad_id, world.device)))
            predicted[torch.from_numpy(own)] = output_B[: len(own)].double()
        return engine.sum_over_ranks(predicted).cpu().numpy()


def make_job(task: Task, data: TaskData, tokenizer: Any, settings: FinetuneConfig) -> GlueJob:
    """Tokenises a task's examples."""
    train = data.train
    if settings.both_orders and task.unordered:
        train = train + [example._replace(texts=example.texts[::-1]) for example in train]
    return GlueJob(
        task,
        tokenize_examples(train, tokenizer, settings.max_length),
        len(data.train),
        {split: tokenize_examples(examples, tokenizer, settings.max_length) for split, examples in data.dev.items()},
        tokenizer.pad_token_id,
    )
