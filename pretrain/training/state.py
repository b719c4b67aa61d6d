"""The training state outside the engine, and what follows from it: the next learning rate, whether a report is due."""

import math
import time
from dataclasses import dataclass, field

from pretrain.config import RunConfig
from pretrain.engine.engine import StepResult
from pretrain.engine.optim import learning_rate
from pretrain.training.guards import RECENT, spike


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
        norm = float(last.gradient_norm)
        return {
            "learning_rate": rate_after(run, self.updates - 1),
            **({"gradient_norm": norm} if math.isfinite(norm) else {}),
            "loss_scale": last.loss_scale,
            "skipped": self.step - self.updates,
            "loss_spikes": self.spikes,
        }


class Stopwatch:
    """Measures the time since it was last restarted."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._started = time.monotonic()

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._started) / 60


def rate_after(run: RunConfig, updates: int) -> float:
    """Returns the learning rate of the next update after `updates` updates."""
    optim = run.optim
    return learning_rate(
        updates,
        base=optim.lr,
        warmup_steps=optim.warmup_steps,
        total_steps=optim.steps,
        multiplicative=optim.multiplicative_warmup,
    )


def due(every: int, step: int, last: int) -> bool:
    """Returns true after every `every`-th step and after the last one."""
    return step % every == 0 or step == last
