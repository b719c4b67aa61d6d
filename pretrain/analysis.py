"""What the paper's analysis asks of a trained model: detection, and how well the sampling head knows the loss.

Shape letters: B batch, L length, K masked positions a sequence.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.data import Batch
from pretrain.electra import ElectraOutput
from pretrain.metrics import MetricSums, summary


class Observations(NamedTuple):
    """One value a visible position (first three) or a masked position (the rest), over all batches."""

    d: np.ndarray
    """The discriminator's logit; above 0 it says "replaced"."""
    replaced: np.ndarray
    masked: np.ndarray
    """Whether the position was masked: the others can never be replaced."""
    estimated_loss: np.ndarray
    """L_hat of the sampled token, by the sampling head; empty where the objective gives none."""
    actual_loss: np.ndarray
    """L_D at the same positions."""
    sampled_other: np.ndarray
    """Whether the sampled token differs from the original."""


@torch.no_grad()
def observe(model: nn.Module, batches: Iterable[Batch], device: torch.device) -> tuple[Observations, dict[str, float]]:
    """Runs the model in evaluation mode over the batches; returns observations and the metrics training reports."""
    model.eval()
    sums, parts = MetricSums(device), []
    for batch in batches:
        batch = batch.to(device)
        output = model(batch)
        sums.add(batch, output)
        parts.append(_observe_batch(batch, output))
    columns = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return Observations(*columns), summary(sums.vector)


def _observe_batch(batch: Batch, output: ElectraOutput) -> tuple[Tensor, ...]:
    visible_BL, valid_BK = batch.attention_mask_BL, batch.masked_valid_BK
    positions_BK = batch.masked_positions_BK
    masked_BL = torch.zeros_like(visible_BL, dtype=torch.int64).scatter_add(1, positions_BK, valid_BK.long()) > 0
    other_BK = output.replaced_BL.gather(1, positions_BK)
    z_BK = output.draw.z_BK
    estimate_BK = torch.zeros_like(valid_BK)[:, :0] if z_BK is None else F.softplus(torch.where(other_BK, z_BK, -z_BK))
    return (
        output.d_BL[visible_BL],
        output.replaced_BL[visible_BL],
        masked_BL[visible_BL],
        estimate_BK.flatten() if z_BK is None else estimate_BK[valid_BK],
        output.discriminator_loss_BL.gather(1, positions_BK)[valid_BK],
        other_BK[valid_BK],
    )


def detection_auc(observations: Observations) -> dict[str, float | None]:
    """Area under the ROC curve of telling replaced from original, over all positions and the masked ones."""
    masked = observations.masked
    return {
        "auc_all": _auc(observations.replaced, observations.d),
        "auc_masked": _auc(observations.replaced[masked], observations.d[masked]),
    }


def _auc(replaced: np.ndarray, d: np.ndarray) -> float | None:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(replaced, d)) if 0 < replaced.sum() < len(replaced) else None


def estimate_correlation(observations: Observations) -> dict[str, float | None]:
    """Pearson correlation of estimated and actual discriminator loss at the sampled tokens (paper section 5).

    By class of the sampled token, original or replaced, and over both; `None` where the objective estimates nothing.
    """
    other = observations.sampled_other
    groups = {"original": ~other, "replaced": other, "all": np.ones_like(other)}
    if not len(observations.estimated_loss):
        return dict.fromkeys(groups)
    pairs = (observations.estimated_loss, observations.actual_loss)
    return {name: _correlation(*(values[group] for values in pairs)) for name, group in groups.items()}


def _correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return float(np.corrcoef(a, b)[0, 1])
