"""The training state outside the engine, and what follows from it: reports, loss spikes, a fatal step, a checkpoint."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from electra_sampler.foundation.locks import confirm
from pretrain.config import RunConfig
from pretrain.data.batches import TrainingBatches
from pretrain.engine.checkpoint import NotSaved, save
from pretrain.engine.engine import Engine, StepResult
from pretrain.runs.folder import CHECKPOINTS, LOCK

RECENT = 64
"""Number of preceding losses that a new one is compared with."""
SPIKE = 8.0
"""A loss this many standard deviations above the median of preceding losses is a spike; normal noise stays below."""
DEVIATION = 1.4826
"""Ratio of standard deviation to median absolute deviation, for normal noise."""


@dataclass
class TrainingState:
    """The loop's own counters; together with the engine's state, all that a resume needs."""

    step: int = 0
    """Optimizer steps whose data was consumed."""
    updates: int = 0
    """Steps that changed the weights: fewer than `step` where fp16 overflowed."""
    spikes: int = 0
    """Steps whose loss was a spike."""
    recent_losses: list[float] = field(default_factory=list)
    """Losses of the last steps, over all ranks; spikes are measured against them."""
    token_losses: list[list[list[float]]] = field(default_factory=list)
    """What `MaskChoice` knows of each token: sum and number of its losses, older and recent; empty without it."""

    def advance(self, result: StepResult, loss: float) -> str | None:
        """Counts a finished step; returns a warning if its loss is a spike, else `None`."""
        self.step += 1
        self.updates += not result.overflow
        warning = spike(loss, self.recent_losses)
        self.spikes += warning is not None
        self.recent_losses = [*self.recent_losses, loss][-RECENT:]
        return warning and f"WARNING: step {self.step}: {warning}"

    def values(self, run: RunConfig, last: StepResult) -> dict[str, float]:
        """Returns the last step's optimization metrics for the log; a step that overflowed has no gradient norm."""
        return {
            "learning_rate": run.optim.rate(self.updates - 1),
            **({} if last.overflow else {"gradient_norm": last.gradient_norm}),
            "loss_scale": last.loss_scale,
            "skipped": self.step - self.updates,
            "loss_spikes": self.spikes,
        }


def due(every: int, step: int, last: int) -> bool:
    """Returns true after every `every`-th step and after the last one."""
    return step % every == 0 or step == last


def require_finite(result: StepResult, loss: float, step: int, batches: TrainingBatches, folder: Path) -> None:
    """Ends the run if the step's loss or gradient is not finite, unless a smaller fp16 loss scale may fix the overflow.

    `step` counts from 1, as in the log; `loss` is its mean over all ranks. A file in `folder` lists its samples.

    Raises:
        FloatingPointError: names step, loss, loss scale and the file with the samples.
    """
    if not result.overflow or (math.isfinite(loss) and not result.fatal):
        return
    index, epoch = batches.sequences(step - 1)
    path = folder / f"nonfinite-step-{step}.json"
    listed = ""
    with suppress(OSError):  # a full disk must not hide the reason
        path.write_text(json.dumps({"step": step, "sequences": index.tolist(), "epochs": epoch.tolist()}))
        listed = f"; the step's {len(index)} sequences are listed in {path}"
    scale = f"loss scale {result.loss_scale:g}" + (" cannot fall further" if result.fatal else "")
    raise FloatingPointError(
        f"step {step}: the gradient is not finite (loss {loss:g}, {scale}) and no weight was updated{listed}"
    )


def spike(loss: float, recent: Sequence[float]) -> str | None:
    """Returns a warning if `loss` is far above the `recent` ones, else `None`; also `None` with fewer than `RECENT`."""
    if len(recent) < RECENT:
        return None
    middle = median(recent)
    deviation = DEVIATION * median(abs(value - middle) for value in recent)
    if loss <= middle + SPIKE * deviation:
        return None
    return f"loss {loss:.4g} is a spike: the last {RECENT} steps had {middle:.4g} +- {deviation:.2g}"


def save_state(
    engine: Engine, folder: Path, run: RunConfig, state: TrainingState, say: Callable[[str], None], must: bool
) -> None:
    """Saves a checkpoint of the current state; a failure is only a warning unless the checkpoint `must` be saved.

    Collective.

    Raises:
        NotSaved: on every rank, if the checkpoint could not be written and `must` is set.
        Lost: on the first rank, if another command has taken over the run folder.
    """
    engine_state, problem = engine.full_state(), None
    if engine.world.is_first:
        confirm(folder / LOCK)
        try:
            saved = save(
                folder / CHECKPOINTS,
                state.step,
                engine_state,
                asdict(state),
                keep_last=run.keep_checkpoints,
                keep_every=run.keep_every,
                say=say,
            )
            say(f"saved {saved.folder}")
        except NotSaved as error:
            problem = str(error)
    if (problem := engine.world.share(problem)) and must:
        raise NotSaved(problem)
    if problem:
        say(f"WARNING: {problem}; training continues, and will try again when the next checkpoint is due")
