"""Checks after every step: a loss or gradient that is not finite ends the run; a loss spike is a warning."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from pretrain.data.batches import TrainingBatches
from pretrain.engine.engine import StepResult

RECENT = 64
"""Number of preceding losses that a new one is compared with."""
SPIKE = 8.0
"""Standard deviations above their median that make a spike; normal noise never gets there."""
DEVIATION = 1.4826
"""Ratio of standard deviation to median absolute deviation, for normal noise."""


def require_finite(result: StepResult, loss: float, step: int, batches: TrainingBatches, folder: Path) -> None:
    """Ends the run if the step's loss or gradient is not finite, unless a smaller fp16 loss scale may fix the overflow.

    `loss` is the step's mean over all ranks. The step's samples are listed in a file in `folder`.

    Raises:
        FloatingPointError: names step, loss, loss scale and the file with the samples.
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
    """Returns a warning if `loss` is far above the `recent` ones, else `None`; also `None` with fewer than `RECENT`."""
    if len(recent) < RECENT:
        return None
    middle = median(recent)
    deviation = DEVIATION * median(abs(value - middle) for value in recent)
    if loss <= middle + SPIKE * deviation:
        return None
    return f"loss {loss:.4g} is a spike: the last {RECENT} steps had {middle:.4g} +- {deviation:.2g}"
