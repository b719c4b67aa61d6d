"""Where a run stands, kept on disk: a run killed or stopped goes on from there, bitwise on as many processes.

RUN/step-.../ as in `pretrain/engine/checkpoint.py`; the step counts batches. Removed when the run is finished.
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from finetune.running.records import Metrics
from pretrain.engine.checkpoint import save
from pretrain.engine.engine import Engine

CHECKPOINT_EVERY = 1_000
"""Batches from one checkpoint to the next: a few minutes of a base model on one GPU."""


class Stopped(Exception):
    """The run was asked to stop and has saved where it stands."""


@dataclass
class RunState:
    """With the engine's state, all that a run needs to go on; its order and dropout follow from (seed, batch)."""

    batches: int = 0
    """Batches learned from, over all epochs."""
    updates: int = 0
    """Those that changed the weights: fewer where fp16 overflowed."""
    loss_sum: float = 0.0
    """Losses of the unfinished epoch, added up over its examples."""
    losses: list[float | None] = field(default_factory=list)
    """Mean loss of each finished epoch; none where it was not finite."""
    metrics: list[Metrics] = field(default_factory=list)
    """Dev scores of each finished epoch."""


def never() -> bool:
    """No request to stop."""
    return False


class Keeper:
    """Saves a run every so many batches and when it is asked to stop."""

    def __init__(self, folder: Path, stop: Callable[[], bool] = never, every: int = CHECKPOINT_EVERY) -> None:
        """`stop` tells whether this rank was asked to stop."""
        self.folder, self.stop, self.every = folder, stop, every

    def after_batch(self, engine: Engine, state: RunState, stopping: bool) -> None:
        """Saves where it is due, and where some rank was asked to stop. Collective.

        Raises:
            Stopped: on request, with everything saved.
        """
        if not stopping and state.batches % self.every:
            return
        engine_state = engine.full_state()
        if engine.world.is_first:
            save(self.folder, state.batches, engine_state, asdict(state), keep_last=1)
        engine.barrier()
        if stopping:
            raise Stopped

    def forget(self) -> None:
        """Removes the checkpoints of a finished run; for the first rank alone."""
        shutil.rmtree(self.folder, ignore_errors=True)
