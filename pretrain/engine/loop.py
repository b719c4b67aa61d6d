"""Shared by the training loops of pre-training and fine-tuning: resuming, and one optimizer step."""

from collections.abc import Callable, Iterable, Sequence
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
    """Loads the newest intact checkpoint into the engine and returns the progress saved with it. Collective.

    Without a checkpoint, the engine stays as it is and the progress is new.

    Raises:
        ConfigError: on every rank, as `checkpoint.all_valid`, or if the checkpoint is of another model.
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
    wishes: Callable[[], Sequence[bool]],
    learning_rate: float,
    scale: AdamScale = UNSCALED,
) -> tuple[StepResult, float, list[bool]]:
    """Runs the backward of each of this rank's micro-batches, then the update. Collective.

    Each item of `losses` is from the forward of one micro-batch: the loss to differentiate, and a value to sum up.
    Returns the result of the update, the sum of these values over all ranks, and for each of `wishes`, such as to stop,
    whether any rank has it. One all-reduce, read just before the update, gives every rank the last two. Only there does
    the host wait for the device, as DeepSpeed does at that point.
    """
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    for loss, counted in losses:
        engine.backward(loss)
        total += counted
    own = torch.tensor([*wishes()], dtype=total.dtype, device=engine.device)
    loss_sum, *wishing = engine.sum_over_ranks(torch.cat([total[None], own])).tolist()
    return engine.update(learning_rate, scale), loss_sum, [ranks > 0 for ranks in wishing]
