"""What the training loops of pre-training and fine-tuning share: resuming, and one optimizer step."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from foundation.config import ConfigError
from pretrain.engine.checkpoint import load, newest_valid
from pretrain.engine.engine import Engine, StepResult
from pretrain.engine.optim import UNSCALED, AdamScale

Progress = TypeVar("Progress")


def resume(folder: Path, engine: Engine, progress: type[Progress]) -> Progress:
    """Loads the newest whole checkpoint into the engine; returns the run's own progress, new without one. Collective.

    Raises:
        ConfigError: on every rank, as `checkpoint.all_valid`; or the checkpoint is another model's.
    """
    problems: tuple[str, ...] = ()
    state, extra = None, None
    if engine.world.is_first:
        try:
            if checkpoint := newest_valid(folder):
                state, extra = load(checkpoint)
        except ConfigError as error:
            problems = error.problems
    problems, extra = engine.world.share([problems, extra])
    if problems:
        raise ConfigError(*problems)
    if extra is None:
        return progress()
    engine.load_full_state(state)
    return progress(**extra)


def optimizer_step(
    engine: Engine,
    losses: Iterable[tuple[Tensor, Tensor]],
    stop: Callable[[], bool],
    learning_rate: float,
    scale: AdamScale = UNSCALED,
) -> tuple[StepResult, float, bool]:
    """The backward of each of this rank's micro-batches, and the update. Collective.

    `losses` runs the forward of the next micro-batch: it gives what to differentiate, and what to add up. Returns what
    the update did, that sum over all ranks, and whether any of them is to `stop`. The ranks agree on these two by one
    sum, read just before the update: the one place where the host waits for the device, as DeepSpeed does.
    """
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    for loss, counted in losses:
        engine.backward(loss)
        total += counted
    wanted = torch.full_like(total, stop())
    loss_sum, stopping = engine.sum_over_ranks(torch.stack([total, wanted])).tolist()
    return engine.update(learning_rate, scale), loss_sum, stopping > 0
