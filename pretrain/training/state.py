"""The state of a training run beside its engine's, and what follows from it: the next update's rate, a due report."""

import math
from dataclasses import dataclass, field

from pretrain.config import RunConfig
from pretrain.engine.engine import StepResult
from pretrain.engine.optim import learning_rate
from pretrain.training.guards import RECENT, spike


@dataclass
class TrainingState:
    """With the engine's state, all that a resume needs."""

    step: int = 0
    """Optimizer steps whose data was consumed."""
    updates: int = 0
    """Steps that changed the weights: fewer than `step` where fp16 overflowed."""
    spikes: int = 0
    """Steps whose loss was a spike."""
    recent_losses: list[float] = field(default_factory=list)
    """Losses of the last steps, over all ranks; a spike is measured against them."""

    def advance(self, result: StepResult, loss: float) -> str | None:
        """Counts a finished step; returns a warning about its loss, or `None`."""
        self.step += 1
        self.updates += not result.overflow
        warning = spike(loss, self.recent_losses)
        self.spikes += warning is not None
        self.recent_losses = [*self.recent_losses, loss][-RECENT:]
        return warning and f"WARNING: step {self.step}: {warning}"

    def values(self, run: RunConfig, last: StepResult) -> dict[str, float]:
        """The last step's optimization, for the log; an overflow has no norm."""
        norm = float(last.gradient_norm)
        return {
            "learning_rate": rate_after(run, self.updates - 1),
            **({"gradient_norm": norm} if math.isfinite(norm) else {}),
            "loss_scale": last.loss_scale,
            "skipped": self.step - self.updates,
            "loss_spikes": self.spikes,
        }


def rate_after(run: RunConfig, updates: int) -> float:
    """Learning rate of the update that follows `updates` of them."""
    optim = run.optim
    return learning_rate(
        updates,
        base=optim.lr,
        warmup_steps=optim.warmup_steps,
        total_steps=optim.steps,
        multiplicative=optim.multiplicative_warmup,
    )


def due(every: int, step: int, last: int) -> bool:
    """Whether an action taken every so many steps is due after this one; after the last step it always is."""
    return step % every == 0 or step == last
