"""A GLUE task as a run needs it."""

from dataclasses import dataclass

import numpy as np
import torch

from finetune.features import Batch, Features, collate, shares
from finetune.heads import SequenceClassifier, example_losses, predictions
from finetune.job import Evaluation
from finetune.metrics import is_constant, score
from finetune.records import Metrics
from finetune.tasks.glue import Task
from pretrain.encoder import ElectraEncoder
from pretrain.engine import Engine

EVALUATION_BATCH = 128
"""Dev examples a rank scores at once; no gradients, so larger than in training."""


@dataclass(frozen=True)
class GlueJob:
    """A task's tokenised examples; `dev` by split."""

    task: Task
    train: Features
    dev: dict[str, Features]
    pad_id: int

    @property
    def train_examples(self) -> int:
        return len(self.train.targets)

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
