"""Checks of every step: a loss or gradient that is not finite ends the run; warns when the loss spikes."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from pretrain.data.batches import TrainingBatches
from pretrain.engine.engine import StepResult

RECENT = 64
"""Steps whose losses a new one is compared with."""
SPIKE = 8.0
"""Deviations above their median that are a spike; normal noise never goes so far."""
DEVIATION = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""


def require_finite(result: StepResult, loss: float, step: int, batches: TrainingBatches, folder: Path) -> None:
    """Lets a step pass that updated, or whose overflow a smaller fp16 loss scale may mend.

    `loss` is the step's over all ranks. The list of the step's samples is left in `folder`.

    Raises:
        FloatingPointError: names step, loss, loss scale and where the samples are listed.
    """
    if not result.overflow or (math.isfinite(loss) and not result.fatal):
        return
    index, epoch = batches.sequences(step)
    path = folder / f"nonfinite-step-{step}.json"
    path.write_text(json.dumps({"step": step, "sequences": index.tolist(), "epochs": epoch.tolist()}))
    scale = f"loss scale {result.loss_scale:g}" + (" cannot fall further" if result.fatal else "")
    raise FloatingPointError(
        f"step {step}: the gradient is not finite (loss {loss:g}, {scale}) and nothing was updated;"
        f" its {len(index)} sequences are in {path}"
    )


def spike(loss: float, recent: Sequence[float]) -> str | None:
    """A warning if `loss` is far above the `recent` ones; `None` if not, or with too few to tell."""
    if len(recent) < RECENT:
        return None
    middle = median(recent)
    deviation = DEVIATION * median(abs(value - middle) for value in recent)
    if loss <= middle + SPIKE * deviation:
        return None
    return f"loss {loss:.4g} is a spike: the last {RECENT} steps had {middle:.4g} +- {deviation:.2g}"
