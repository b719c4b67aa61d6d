"""A GLUE task as a run needs it, and the runs that a command asks for."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from finetune.config import GlueConfig, GlueOptions
from finetune.glue.files import load_task, missing_from
from finetune.glue.heads import SequenceClassifier, example_losses, predictions
from finetune.glue.metrics import is_constant, score
from finetune.glue.submission import submission
from finetune.glue.tasks import TASKS, Task, TaskData, UnseenSet, select_tasks
from finetune.presets import paper_grid, settings_for
from finetune.running.job import Evaluation, UnseenResults
from finetune.running.model_folder import ModelFolder, open_model
from finetune.running.records import EXAMPLES, Metrics, RunIdentity
from finetune.running.run_list import run_unfinished
from finetune.tokens.examples import Example
from finetune.tokens.features import Batch, Features, collate, shares, tokenize_examples
from foundation.config import ConfigError
from foundation.files import require_folder
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
        return SequenceClassifier(
            encoder,
            len(self.task.classes) or 1,  # the score of a regression
            self.settings.head,
        )

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

    def predict_tests(self, engine: Engine) -> UnseenResults:
        metrics: Metrics = {}
        files = {}
        for path, (tests, features) in self.tests.items():
            predicted = self.predict(features, engine)
            files[path] = submission(tests.task, tests.indices, predicted)
            target = np.array(features.targets)
            if not np.isnan(target).any():
                metrics[PurePath(path).stem] = score(tests.task.metrics, target, predicted)
        return UnseenResults(metrics, files)

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


def run_queue(options: GlueOptions) -> int:
    """Runs what the options ask for and the output folder does not have yet; returns the exit code.

    Raises:
        ConfigError: a wrong task, model, file or setting; all data is read before the first run.
    """
    require_folder(options.output)
    tasks = present(select_tasks(options.task), options)
    model = open_model(options.model)
    data = {task.name: load_task(task, options.data_dir, tests=options.predict_test) for task in tasks}
    planned = [run for task in tasks for run in plan(options, model, task, data[task.name])]

    def prepare(run: RunIdentity) -> GlueJob:
        assert isinstance(run.settings, GlueConfig)
        return make_job(TASKS[run.task], data[run.task], model.tokenizer, run.settings)

    files = {name: list(examples.tests_by_path()) for name, examples in data.items()}
    return run_unfinished(planned, prepare, files, model, options, options.output)


def present(tasks: list[Task], options: GlueOptions) -> list[Task]:
    """All tasks asked for by name; of `all`, those that the data folder has, the others named in a line each.

    Raises:
        ConfigError: `all`, and not one is there.
    """
    if "all" not in options.task:
        return tasks
    missing = {task.name: missing_from(task, options.data_dir) for task in tasks}
    if all(missing.values()):
        raise ConfigError(f"data_dir: {options.data_dir} has no task of GLUE; expected folders such as CoLA in it")
    if os.environ.get("RANK", "0") == "0":
        for name, problem in missing.items():
            if problem:
                print(f"{name} is left out: {problem}", flush=True)
    return [task for task in tasks if missing[task.name] is None]


def plan(options: GlueOptions, model: ModelFolder, task: Task, data: TaskData) -> list[RunIdentity]:
    """What is asked for on one task, each setting with the first seed.

    Raises:
        ConfigError: a setting out of range.
    """
    hidden_size, positions = model.config.hidden_size, model.config.max_position_embeddings
    points = paper_grid(task.name, hidden_size) if options.grid else [{}]
    given = options.overrides()
    if not task.unordered:
        given.pop("both_orders", None)  # says nothing about this task: not another run
    if task.classes:
        given.pop("plain_scores", None)
    wanted = [settings_for(task.name, hidden_size, positions, point | given) for point in points]
    first = RunIdentity(
        task=task.name,
        seed=options.seeds[0],
        model_sha256=model.sha256,
        random_weights=options.random_weights,
        data_sha256=data.fingerprint(),
        settings=wanted[0],
    )
    return [first.model_copy(update={"settings": settings}) for settings in dict.fromkeys(wanted)]
