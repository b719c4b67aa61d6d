"""One fine-tuning run: trains a model on a task with one seed, and scores the dev set after each epoch.

Every rank holds all examples and takes its part of each batch. The loss is the mean over the whole batch, so neither
the number of ranks nor the micro-batch size changes the result. All randomness derives from (seed, batch).
An interrupted run resumes from RUN/step-.../ (`pretrain/engine/checkpoint.py`; the step counts batches), with the same
bits on the same number of processes; the folder is removed when the run is finished.
"""

import gc
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from electra_sampler.foundation.ordering import key_of
from finetune.config import FinetuneConfig
from finetune.running.job import Job, collate, epoch_batches
from finetune.running.records import Metrics
from pretrain.engine.checkpoint import save
from pretrain.engine.deepspeed_config import EngineConfig, Source, resolve
from pretrain.engine.engine import Engine, accumulate, end_step, resume
from pretrain.engine.optim import learning_rate, parameter_groups
from pretrain.huggingface.stored import Stored
from pretrain.job.processes import World
from pretrain.model.encoder import Encoder

REPORT_SECONDS = 30.0
"""Minimum seconds between two lines of progress within an epoch."""
CHECKPOINT_EVERY = 1_000
"""Batches from one checkpoint to the next."""


class Stopped(Exception):
    """Raised when the run was asked to stop and has saved its state."""


@dataclass
class RunState:
    """The part of a checkpoint that is not the engine's state; order and dropout follow from (seed, batch)."""

    batches: int = 0
    """Batches trained on, over all epochs."""
    updates: int = 0
    """Batches that changed the weights: all but those skipped because fp16 overflowed."""
    loss_sum: float = 0.0
    """Sum of the losses of the unfinished epoch's examples."""
    losses: list[float | None] = field(default_factory=list)
    """Mean loss of each finished epoch; `None` if it was not finite."""
    metrics: list[Metrics] = field(default_factory=list)
    """Dev scores of each finished epoch."""


class Saving(NamedTuple):
    """How a run saves checkpoints, and whether its outcome includes the weights."""

    folder: Path
    """The folder of the run's checkpoints."""
    stop: Callable[[], bool]
    """Returns True if this rank was asked to stop; the run then saves a checkpoint and stops."""
    every: int = CHECKPOINT_EVERY
    """Batches from one checkpoint to the next."""
    weights: bool = False
    """Whether the outcome includes the trained weights."""


class Outcome(NamedTuple):
    """The result of a run; its fields are explained in `records.RunRecord`."""

    last: Metrics
    best: Metrics
    train_losses: tuple[float | None, ...]
    collapsed: str | None
    precision: str
    files: Mapping[str, Any]
    """Answers to keep: file name -> text, or a value that JSON can hold."""
    weights: Mapping[str, Tensor]
    """The trained weights in fp32, on the first rank; empty if not requested or if the run diverged."""


def train(
    model: Stored,
    random_weights: bool,
    job: Job,
    settings: FinetuneConfig,
    seed: int,
    deepspeed_config: Source,
    world: World,
    saving: Saving | None = None,
) -> Outcome:
    """Trains one run, resuming it if `saving.folder` has a checkpoint. Collective.

    Raises:
        ConfigError: the model or the DeepSpeed configuration does not fit.
        Stopped: on request, after saving a checkpoint.
    """
    torch.manual_seed(key_of(seed, 0))
    encoder = model.encoder(
        random_weights=random_weights,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.attention_dropout,
    )
    run = Run(encoder, job, settings, seed, deepspeed_config, world, saving)
    try:
        return run.train()
    finally:
        del run
        gc.collect()  # DeepSpeed's engine holds itself in cycles; the next run needs its memory


class Run:
    """One run in training: its engine and its state."""

    def __init__(
        self,
        encoder: Encoder,
        job: Job,
        settings: FinetuneConfig,
        seed: int,
        deepspeed_config: Source,
        world: World,
        saving: Saving | None = None,
    ) -> None:
        self.job, self.settings, self.seed, self.world, self.saving = job, settings, seed, world, saving
        self.batches_per_epoch = math.ceil(len(job.train.targets) / settings.batch_size)
        self.steps = self.batches_per_epoch * settings.epochs
        model = job.build(encoder)
        config = resolve_for(settings, deepspeed_config, world)
        self.engine = Engine(model, groups(model, encoder.config.num_hidden_layers, settings), config, world)
        self.state = resume(saving.folder, self.engine, RunState) if saving else RunState()
        self.stopping = False  # whether some rank was asked to stop, as of the last update
        self.resumed = self.state.batches
        self.started = self.said = time.monotonic()
        if self.resumed:
            self.say(f"resumes after step {self.resumed}/{self.steps}")

    def train(self) -> Outcome:
        """Trains and evaluates all remaining epochs; ends after an epoch whose loss is not finite."""
        state, evaluation = self.state, None
        for epoch in range(len(state.losses), self.settings.epochs):
            loss = self.train_epoch(epoch)
            self.engine.module.eval()
            evaluation = self.job.evaluate(self.engine.module, self.world)
            state.losses.append(loss if math.isfinite(loss) else None)
            state.metrics.append(evaluation.metrics)
            scores = ", ".join(
                f"{split} {name} {values[name]:.4f}"
                for split, values in evaluation.metrics.items()
                for name in self.job.task.metrics
            )
            self.say(f"epoch {epoch + 1}, loss {loss:.4f}, {scores} ({time.monotonic() - self.started:.0f} s)")
            if state.losses[-1] is None:
                break
        assert evaluation is not None  # a checkpoint of the last epoch lies before its evaluation
        collapsed = "constant prediction" if evaluation.constant else None
        tests, task = self.job.predict_tests(self.engine.module, self.world), self.job.task
        finite = state.losses[-1] is not None and state.updates > 0
        kept = self.saving is not None and self.saving.weights and finite
        return Outcome(
            last=evaluation.metrics | tests.metrics,
            best=max(state.metrics, key=lambda metrics: metrics[task.dev_splits[0]][task.metrics[0]]),
            train_losses=tuple(state.losses),
            collapsed="non-finite loss" if state.losses[-1] is None else collapsed,
            precision=str(self.engine.dtype).removeprefix("torch."),
            files={**evaluation.files, **tests.files},
            weights=self.engine.full_state().weights if kept else {},
        )

    def train_epoch(self, epoch: int) -> float:
        """Trains the rest of an epoch; returns the mean loss over the whole epoch.

        Raises:
            Stopped: on request, after saving a checkpoint.
        """
        self.engine.module.train()
        state, settings = self.state, self.settings
        lengths = [len(ids) for ids in self.job.train.input_ids]
        batches = epoch_batches(lengths, settings.batch_size, settings.length_pool, self.seed, epoch)
        for chosen in batches[state.batches - epoch * self.batches_per_epoch :]:
            state.loss_sum += self.update(chosen)
            if (now := time.monotonic()) - self.said > REPORT_SECONDS:
                left = (now - self.started) / (state.batches - self.resumed) * (self.steps - state.batches)
                self.say(f"step {state.batches}/{self.steps}, {left:.0f} s left")
            if self.saving and (self.stopping or not state.batches % self.saving.every):
                engine_state = self.engine.full_state()  # collective
                if self.world.is_first:
                    save(self.saving.folder, state.batches, engine_state, asdict(state), keep_last=1)
            if self.stopping:
                raise Stopped
        loss_sum, state.loss_sum = state.loss_sum, 0.0
        return loss_sum / len(self.job.train.targets)

    def update(self, chosen: np.ndarray) -> float:
        """Makes one optimizer update on the examples with the indices `chosen`; returns the sum of their losses."""
        parts = self.world.world_size * self.engine.config.accumulation_steps
        rate = learning_rate(
            self.state.updates,
            base=self.settings.learning_rate,
            warmup_steps=int(self.settings.warmup_fraction * self.steps),
            total_steps=self.steps,
        )
        total = accumulate(self.engine, self.losses(chosen, parts))
        stops = self.saving is not None and self.saving.stop()
        result, (loss_sum, stopping) = end_step(self.engine, total, [stops], rate).read()
        self.stopping = stopping > 0
        self.state.updates += not result.overflow
        self.state.batches += 1
        return loss_sum

    def losses(self, chosen: np.ndarray, parts: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields, for each of this rank's micro-batches, the loss to differentiate and the sum over its examples."""
        for part in range(self.world.rank, parts, self.world.world_size):
            torch.manual_seed(key_of(self.seed, 1, self.state.batches, part))  # dropout's only source
            batch = collate(self.job.train, chosen[part::parts], self.job.pad_id, self.world.device)
            loss_B = self.job.losses(self.engine.forward(batch), batch) * batch.weight_B
            # DeepSpeed takes the mean over parts of unequal size: undo it, divide by the true count.
            yield loss_B.sum() * parts / len(chosen), loss_B.detach().sum()

    def say(self, line: str) -> None:
        """Prints one line of progress, on the first rank only."""
        self.said = time.monotonic()
        if self.world.is_first:
            print(f"{self.job.task.name} seed {self.seed}: {line}", flush=True)


def resolve_for(settings: FinetuneConfig, deepspeed_config: Source, world: World) -> EngineConfig:
    """Returns the resolved DeepSpeed configuration of runs with these settings.

    Raises:
        ConfigError: as `deepspeed_config.resolve`.
    """
    return resolve(
        deepspeed_config,
        batch_size=settings.batch_size,
        world_size=world.world_size,
        device_type=world.device.type,
        clipping=settings.gradient_clipping,
    )


def groups(model: nn.Module, num_layers: int, settings: FinetuneConfig) -> list[dict[str, Any]]:
    """Returns the optimizer's parameter groups, with layer-wise learning-rate decay."""
    return parameter_groups(
        model,
        settings.weight_decay,
        settings.betas,
        settings.eps,
        lambda name: layer_scale(name, num_layers, settings.layer_decay),
    )


def layer_scale(name: str, num_layers: int, decay: float) -> float:
    """Returns the factor on the learning rate of the parameter `name`: `decay` to the power of its depth.

    With 12 layers and decay .8 it is 1 for the head, .8 for the top layer, .8^12 = .0687 for the bottom layer, and
    .8^13 = .0550 for the embeddings and any parameter below all layers or shared by them. (google-research/electra
    skips a depth below the head: `model/optimization.py`, its issues 51 and 64.)
    """
    if name.startswith("head."):
        return 1.0
    layer = re.search(r"\.layer\.(\d+)\.", name)
    return decay ** (num_layers - int(layer[1]) if layer else num_layers + 1)
