"""GLUE tasks as jobs, and the runs that a command asks for."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from finetune.config import GlueConfig, GlueOptions
from finetune.glue.files import load_task, missing_from
from finetune.glue.heads import SequenceClassifier, as_two_layers
from finetune.glue.metrics import is_constant, score, submission
from finetune.glue.tasks import Example, ExampleSet, GlueTask, TaskData, select_tasks
from finetune.presets import settings_for
from finetune.running.job import PIPELINE, Evaluation, HuggingFaceModel, Job, LoadedTask, Predictor, labels_of
from finetune.running.records import EXAMPLES, Metrics
from finetune.tokens import Batch, Features
from foundation.config import ConfigError
from pretrain.engine.engine import Engine
from pretrain.model.encoder import ElectraEncoder

EVALUATION_BATCH = 128
"""Dev examples per rank and forward pass; no gradients, so larger than in training."""


@dataclass(frozen=True, kw_only=True)
class GlueJob(Job):
    """A GLUE task with its tokenized examples; `tests` are keyed by the path of their predictions in the run's folder.

    Targets and predictions of a regression are fractions of the highest score, with any model.
    """

    task: GlueTask
    settings: GlueConfig
    dev: dict[str, Features] = field(default_factory=dict)
    tests: dict[str, tuple[ExampleSet, Features]] = field(default_factory=dict)

    @property
    def unit(self) -> float:
        """The model's output that means the task's highest score."""
        return self.task.max_score if self.task.max_score and self.settings.plain_scores else 1.0

    def build(self, encoder: ElectraEncoder) -> SequenceClassifier:
        return SequenceClassifier(encoder, len(self.task.classes) or 1, self.settings.head)

    def losses(self, output_BC: Tensor, batch: Batch) -> Tensor:
        """Loss of each example: squared error for a regression's one output, cross-entropy for classes."""
        if not self.task.classes:
            return (output_BC[:, 0] - batch.target_B * self.unit).square()
        return F.cross_entropy(output_BC, batch.target_B.long(), reduction="none")

    def evaluate(self, engine: Engine) -> Evaluation:
        predicted = {split: self.predict(features, engine) for split, features in self.dev.items()}
        return Evaluation(
            {
                split: score(self.task.metrics, np.array(features.targets), predicted[split])
                for split, features in self.dev.items()
            },
            {
                EXAMPLES: {
                    split: {"predicted": predicted[split].tolist(), "target": features.targets}
                    for split, features in self.dev.items()
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

    def to_hugging_face(self, head: Mapping[str, Tensor]) -> HuggingFaceModel:
        """Returns the model as `ElectraForSequenceClassification`; its output for a regression is the score."""
        two_layers = head if self.settings.head == "hf" else as_two_layers(head["weight"], head["bias"])
        weights = {f"classifier.{name}": weight for name, weight in two_layers.items()}
        config = labels_of(self.task.labels or self.task.classes or ("score",))
        if not self.task.classes:
            config |= {"problem_type": "regression"}
            for name in ("classifier.out_proj.weight", "classifier.out_proj.bias"):
                weights[name] = weights[name] * (self.task.max_score / self.unit)
        text = '"A text."' if len(self.task.text_columns) == 1 else '{"text": "A text.", "text_pair": "Another."}'
        return HuggingFaceModel(
            "ElectraForSequenceClassification",
            weights,
            config,
            "text-classification",
            PIPELINE.format(task="text-classification", input=f"{text}, truncation=True"),
        )

    def predict(self, features: Features, engine: Engine) -> np.ndarray:
        """Returns the prediction for every example, in order, on every rank; a diverged model's are 0."""
        outputs = self.outputs(features, engine)
        if self.task.classes:
            return outputs.argmax(axis=1).astype(float)
        return np.nan_to_num(outputs[:, 0]) / self.unit

    def outputs(self, features: Features, predictor: Predictor) -> np.ndarray:
        """Returns the model's outputs for every example [examples, C], in order, on every rank."""
        width = len(self.task.classes) or 1
        return self.answer_all(
            features, predictor, EVALUATION_BATCH, width, lambda output_BC, batch, own: output_BC
        ).numpy()


def make_job(task: GlueTask, data: TaskData, tokenizer: Any, settings: GlueConfig) -> GlueJob:
    """Tokenizes a task's examples; returns them as a job."""
    features = partial(tokenize_examples, tokenizer=tokenizer, max_length=settings.max_length)
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
    """Tokenizes the examples, each a text or a pair; pieces are cut from the end of the longer text if needed."""
    columns = [list(column) for column in zip(*(example.texts for example in examples), strict=True)]
    encoded = tokenizer(
        *columns,
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    return Features(encoded["input_ids"], encoded["token_type_ids"], [example.target for example in examples])


def select(options: GlueOptions) -> list[GlueTask]:
    """Returns the tasks named or, for `all`, the tasks in the data folder; prints a line per missing task.

    Raises:
        ConfigError: a name is not a task's, or `all` was given, but the folder has none of the tasks.
    """
    tasks = select_tasks(options.task)
    if "all" not in map(str.lower, options.task):
        return tasks
    missing = {task.name: problem for task in tasks if (problem := missing_from(task, options.data_dir))}
    if len(missing) == len(tasks):
        raise ConfigError(f"data_dir: {options.data_dir} has none of GLUE's tasks; expected folders such as CoLA in it")
    for name, problem in missing.items() if os.environ.get("RANK", "0") == "0" else ():
        print(f"{name} is left out: {problem}", flush=True)
    return [task for task in tasks if task.name not in missing]


def load(task: GlueTask, options: GlueOptions) -> LoadedTask:
    """Reads the files of a task.

    Raises:
        ConfigError: as `load_task`.
    """
    data = load_task(task, options.data_dir, tests=options.predict_test)
    idle = {"both_orders": not task.unordered, "plain_scores": bool(task.classes)}  # here they change no run

    def settings(hidden_size: int, max_positions: int, overrides: dict[str, Any]) -> GlueConfig:
        given = {name: value for name, value in overrides.items() if not idle.get(name)}
        return settings_for(task.name, hidden_size, max_positions, given)

    return LoadedTask(task, data.fingerprint(), settings, partial(make_job, task, data), list(data.tests_by_path()))
