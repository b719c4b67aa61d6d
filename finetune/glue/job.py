"""GLUE tasks as jobs: features, heads, predictions, metrics, and the tasks that a command asks for.

Two heads classify or score the state of [CLS]. `electra` is google-research/electra's: dropout and one dense layer.
`hf` is Hugging Face's `ElectraClassificationHead`: a dense layer with GELU and its own dropout comes first.
Shape letters: B batch, L length, H hidden size, C outputs, X rows of zeros.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
import scipy.stats
import sklearn.metrics
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_sampler.foundation.config import ConfigError
from finetune.config import GlueConfig, GlueOptions
from finetune.glue.files import load_task, missing_from
from finetune.glue.tasks import Example, ExampleSet, GlueTask, TaskData, select_tasks
from finetune.running.job import PIPELINE, Batch, Evaluation, Features, HuggingFaceModel, Job, LoadedTask, labels_of
from finetune.running.records import EXAMPLES, Metrics
from pretrain.job.processes import World
from pretrain.model import ops
from pretrain.model.encoder import Encoder

EVALUATION_BATCH = 128
"""Dev examples per rank and forward pass; no gradients, so larger than in training."""
CONSTANT_SPREAD = 1e-3
"""Predictions that differ by less than this count as constant: a thousandth of the range of a score."""


def _correlation(measure: Callable, target: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the correlation by `measure`; 0 if targets or predictions are constant, as in a collapsed run."""
    return 0.0 if np.ptp(predicted) == 0 or np.ptp(target) == 0 else measure(target, predicted).statistic


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": partial(sklearn.metrics.f1_score, zero_division=0),  # of class 1
    "matthews": sklearn.metrics.matthews_corrcoef,
    "pearson": partial(_correlation, scipy.stats.pearsonr),
    "spearman": partial(_correlation, scipy.stats.spearmanr),
}
"""Metrics by name: functions of targets and predictions [examples] with a value in [-1, 1]."""


class SequenceClassifier(nn.Module):
    """Encoder and task head: maps a batch to outputs [B, C] in fp32, one column per class or one score."""

    def __init__(self, encoder: Encoder, num_outputs: int, head: Literal["electra", "hf"] = "electra") -> None:
        super().__init__()
        size, dropout = encoder.config.hidden_size, encoder.config.hidden_dropout_prob
        self.electra = encoder
        self.dropout = nn.Dropout(dropout)
        if head == "hf":
            dense, out_proj = ops.Linear(size, size), ops.Linear(size, num_outputs)
            for layer in (dense, out_proj):
                nn.init.normal_(layer.weight, std=encoder.config.initializer_range)
                nn.init.zeros_(layer.bias)
            layers = {"dense": dense, "activation": nn.GELU(), "dropout": nn.Dropout(dropout), "out_proj": out_proj}
            self.head: nn.Module = nn.Sequential(OrderedDict(layers))  # parameters are named as Hugging Face's
        else:
            self.head = ops.Linear(size, num_outputs)
            nn.init.xavier_uniform_(self.head.weight)  # TensorFlow's default, which google-research/electra keeps
            nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        hidden_BLH = self.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
        return self.head(self.dropout(hidden_BLH[:, 0])).float()


def as_two_layers(weight_CH: Tensor, bias_C: Tensor) -> dict[str, Tensor]:
    """Returns weights with which the two-layer head `hf` computes one dense layer z, as GELU(z) - GELU(-z) = z.

    The first layer computes z and -z for every output, padded with zeros; the second takes the difference.
    """
    outputs, size = weight_CH.shape
    rest_XH, rest_X = weight_CH.new_zeros(size - 2 * outputs, size), bias_C.new_zeros(size - 2 * outputs)
    one_CC = torch.eye(outputs, device=weight_CH.device)
    return {
        "dense.weight": torch.cat([weight_CH, -weight_CH, rest_XH]),
        "dense.bias": torch.cat([bias_C, -bias_C, rest_X]),
        "out_proj.weight": torch.cat([one_CC, -one_CC, rest_XH[:, :outputs].T], dim=1),
        "out_proj.bias": torch.zeros_like(bias_C),
    }


@dataclass(frozen=True, kw_only=True)
class GlueJob(Job):
    """A GLUE task with its tokenized examples; `tests` is keyed by the file for their predictions in the run's folder.

    Targets and predictions of a regression are fractions of the highest score.
    """

    task: GlueTask
    settings: GlueConfig
    dev: dict[str, Features] = field(default_factory=dict)
    tests: dict[str, tuple[ExampleSet, Features]] = field(default_factory=dict)

    def build(self, encoder: Encoder) -> SequenceClassifier:
        return SequenceClassifier(encoder, len(self.task.classes) or 1, self.settings.head)

    def losses(self, output_BC: Tensor, batch: Batch) -> Tensor:
        """Returns the loss of each example [B]: squared error for regression, cross-entropy for classes."""
        if not self.task.classes:
            return (output_BC[:, 0] - batch.target_B).square()
        return F.cross_entropy(output_BC, batch.target_B.long(), reduction="none")

    def evaluate(self, model: nn.Module, world: World) -> Evaluation:
        predicted = {split: self.predict(features, model, world) for split, features in self.dev.items()}
        answers = {
            split: {"predicted": predicted[split].tolist(), "target": features.targets}
            for split, features in self.dev.items()
        }
        metrics = {
            split: score(self.task.metrics, np.array(features.targets), predicted[split])
            for split, features in self.dev.items()
        }
        constant = all(np.ptp(found) < CONSTANT_SPREAD for found in predicted.values())
        return Evaluation(metrics, {EXAMPLES: answers}, constant)

    def predict_tests(self, model: nn.Module, world: World) -> Evaluation:
        metrics: Metrics = {}
        files = {}
        for path, (tests, features) in self.tests.items():
            predicted = self.predict(features, model, world)
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
                weights[name] = weights[name] * self.task.max_score
        text = '"A text."' if len(self.task.text_columns) == 1 else '{"text": "A text.", "text_pair": "Another."}'
        return HuggingFaceModel(
            "ElectraForSequenceClassification",
            weights,
            config,
            "text-classification",
            PIPELINE.format(task="text-classification", input=f"{text}, truncation=True"),
        )

    def predict(self, features: Features, model: nn.Module, world: World) -> np.ndarray:
        """Returns the prediction for every example, in order, on every rank; 0 where a diverged model outputs NaN."""
        width = len(self.task.classes) or 1
        outputs = self.answer_all(
            features, model, world, EVALUATION_BATCH, width, lambda output_BC, batch, own: output_BC
        ).numpy()
        return outputs.argmax(axis=1).astype(float) if self.task.classes else np.nan_to_num(outputs[:, 0])


def make_job(task: GlueTask, data: TaskData, tokenizer: Any, settings: GlueConfig) -> GlueJob:
    """Tokenizes a task's examples; returns them as a job."""
    features = partial(tokenize_examples, tokenizer=tokenizer, max_length=settings.max_length)
    return GlueJob(
        task=task,
        settings=settings,
        train=features(data.train),
        train_examples=len(data.train),
        pad_id=tokenizer.pad_token_id,
        dev={split: features(examples) for split, examples in data.dev.items()},
        tests={path: (tests, features(tests.examples)) for path, tests in data.tests_by_path().items()},
    )


def tokenize_examples(examples: Sequence[Example], tokenizer: Any, max_length: int) -> Features:
    """Tokenizes the examples, each a text or a pair; truncates the longer text if they exceed `max_length`."""
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
        ConfigError: a name is unknown, or `all` was given, but the folder has none of the tasks.
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


def load(options: GlueOptions) -> Iterator[LoadedTask]:
    """Yields the selected tasks; reads the files of each task only when it is reached.

    Raises:
        ConfigError: as `select` and `load_task`.
    """
    read = ((task, load_task(task, options.data_dir, tests=options.predict_test)) for task in select(options))
    return (
        LoadedTask(task, data.fingerprint(), partial(make_job, task, data), list(data.tests_by_path()))
        for task, data in read
    )


def score(names: Iterable[str], target: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Computes the named metrics; returns plain floats by name."""
    return {name: float(METRICS[name](target, predicted)) for name in names}


def submission(task: GlueTask, indices: Iterable[str], predicted: np.ndarray) -> str:
    """Returns predictions in GLUE's submission format (TSV): class numbers as label names, fractions as scores."""
    labels = [
        task.classes[int(value)] if task.classes else f"{task.max_score * min(max(value, 0.0), 1.0):.3f}"
        for value in predicted.tolist()
    ]
    return "".join("\t".join(row) + "\n" for row in (("index", "prediction"), *zip(indices, labels, strict=True)))
