"""One fine-tuning run: a task, a seed, a model -> dev scores after each epoch.

Every rank holds all examples and takes its part of each batch; the loss is the mean over the whole batch, so
neither the number of ranks nor the micro-batch changes what is learned. All randomness derives from the seed.
"""

import gc
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from finetune.config import FinetuneConfig
from finetune.features import collate
from finetune.job import Evaluation, Job
from finetune.layer_decay import layer_scale
from finetune.records import Metrics
from pretrain.deepspeed_config import resolve
from pretrain.encoder import ElectraEncoder
from pretrain.engine import Engine
from pretrain.huggingface import load_encoder
from pretrain.optim import OptimConfig, learning_rate, parameter_groups
from pretrain.ordering import key_of, permuted
from pretrain.processes import World

REPORT_SECONDS = 30.0
"""Between two lines of progress within an epoch."""


class Outcome(NamedTuple):
    """What a run came to; fields as in `records.RunRecord`."""

    last: Metrics
    best: Metrics
    train_losses: tuple[float | None, ...]
    collapsed: str | None
    precision: str
    files: Mapping[str, Any]
    """What to keep of the last epoch's answers: file name -> JSON value."""


def train(
    folder: Path,
    random_weights: bool,
    job: Job,
    settings: FinetuneConfig,
    seed: int,
    deepspeed_config: Path,
    world: World,
) -> Outcome:
    """One run from its start, on every rank.

    Raises:
        ConfigError: a model or DeepSpeed configuration that does not fit.
    """
    torch.manual_seed(key_of(seed, 0))
    encoder = load_encoder(
        folder,
        random_weights=random_weights,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.attention_dropout,
    )
    run = Run(encoder, job, settings, seed, deepspeed_config, world)
    outcome = run.train()
    del run
    gc.collect()  # DeepSpeed's engine holds itself in cycles; the next run needs its memory
    return outcome


class Run:
    """The state of one run: the engine, and the count of updates done."""

    def __init__(
        self,
        encoder: ElectraEncoder,
        job: Job,
        settings: FinetuneConfig,
        seed: int,
        deepspeed_config: Path,
        world: World,
    ) -> None:
        self.job, self.settings, self.seed, self.world = job, settings, seed, world
        self.batches_per_epoch = math.ceil(len(job.train.targets) / settings.batch_size)
        self.optim = optimization(settings, self.batches_per_epoch * settings.epochs)
        model = job.build(encoder)
        self.engine = Engine(
            model, groups(model, encoder.config.num_hidden_layers, settings), self._resolve(deepspeed_config), world
        )
        self.updates = 0
        self.progress = Progress(world, self.optim.steps, f"{job.task.name} seed {seed}", job.task.metrics)
        torch.manual_seed(key_of(seed, 1, world.rank))  # dropout from here on

    def _resolve(self, deepspeed_config: Path) -> dict[str, Any]:
        return resolve(
            deepspeed_config,
            batch_size=self.settings.batch_size,
            world_size=self.world.world_size,
            device_type=self.world.device.type,
            optim=self.optim,
        )

    def train(self) -> Outcome:
        """All epochs, an evaluation after each; a loss that is not finite ends the run."""
        losses: list[float | None] = []
        evaluations: list[Evaluation] = []
        for epoch in range(self.settings.epochs):
            loss = self.train_epoch(epoch)
            losses.append(loss if math.isfinite(loss) else None)
            self.engine.module.eval()
            evaluations.append(self.job.evaluate(self.engine))
            self.progress.epoch(epoch, loss, evaluations[-1].metrics)
            if losses[-1] is None:
                break
        last = evaluations[-1]
        collapsed = "constant prediction" if last.constant else None
        return Outcome(
            last=last.metrics,
            best=max((evaluation.metrics for evaluation in evaluations), key=self._headline),
            train_losses=tuple(losses),
            collapsed="non-finite loss" if losses[-1] is None else collapsed,
            precision=str(self.engine.dtype).removeprefix("torch."),
            files=last.files,
        )

    def _headline(self, metrics: Metrics) -> float:
        return metrics[self.job.task.dev_splits[0]][self.job.task.metrics[0]]

    def train_epoch(self, epoch: int) -> float:
        """One pass over the training examples in an order of its own; the mean loss over all of them."""
        self.engine.module.train()
        size = len(self.job.train.targets)
        order = permuted(np.arange(size), size, self.seed, epoch)
        loss_sum = torch.zeros((), device=self.world.device)
        for start in range(0, size, self.settings.batch_size):
            loss_sum += self.update(order[start : start + self.settings.batch_size])
            self.progress.step()
        return float(self.engine.sum_over_ranks(loss_sum)) / size

    def update(self, chosen: np.ndarray) -> torch.Tensor:
        """One update on the examples `chosen`; returns the sum of this rank's losses."""
        engine = self.engine
        parts = self.world.world_size * engine.accumulation_steps
        loss_sum = torch.zeros((), device=self.world.device)
        rate = learning_rate(
            self.updates,
            base=self.optim.lr,
            warmup_steps=self.optim.warmup_steps,
            total_steps=self.optim.steps,
        )
        for part in range(self.world.rank, parts, self.world.world_size):
            batch = collate(self.job.train, chosen[part::parts], self.job.pad_id, self.world.device)
            loss_B = self.job.losses(engine.forward(batch), batch) * batch.weight_B
            # DeepSpeed takes the mean over parts of unequal size: undo it, divide by the true count.
            engine.backward(loss_B.sum() * parts / len(chosen))
            loss_sum += loss_B.detach().sum()
            result = engine.step(rate)
        self.updates += result.updated
        return loss_sum


def optimization(settings: FinetuneConfig, steps: int) -> OptimConfig:
    """The settings as the engine's optimizer takes them."""
    return OptimConfig(
        lr=settings.learning_rate,
        steps=steps,
        warmup_steps=int(settings.warmup_fraction * steps),
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        gradient_clipping=settings.gradient_clipping,
    )


def groups(model: nn.Module, num_layers: int, settings: FinetuneConfig) -> list[dict[str, Any]]:
    """Parameter groups with layer-wise learning-rate decay."""
    return parameter_groups(
        model,
        settings.weight_decay,
        lambda name: layer_scale(name, num_layers, settings.layer_decay, settings.legacy_layer_decay),
    )


class Progress:
    """Lines of progress on the first rank: one an epoch, and one now and then in between."""

    def __init__(self, world: World, steps: int, title: str, shown: tuple[str, ...]) -> None:
        self.speaks, self.steps, self.title, self.shown = world.is_first, steps, title, shown
        self.done = 0
        self.started = self.spoken = time.monotonic()

    def step(self) -> None:
        """Counts an update."""
        self.done += 1
        now = time.monotonic()
        if self.speaks and now - self.spoken > REPORT_SECONDS:
            self.spoken = now
            left = (now - self.started) / self.done * (self.steps - self.done)
            print(f"{self.title}: step {self.done}/{self.steps}, {left:.0f} s left", flush=True)

    def epoch(self, epoch: int, loss: float, metrics: Metrics) -> None:
        """Says what an epoch came to."""
        if self.speaks:
            self.spoken = time.monotonic()
            scores = [f"{split} {name} {values[name]:.4f}" for split, values in metrics.items() for name in self.shown]
            seconds = self.spoken - self.started
            print(
                f"{self.title}: epoch {epoch + 1}, loss {loss:.4f}, {', '.join(scores)} ({seconds:.0f} s)",
                flush=True,
            )
