"""How what a forward believes is spread over the positions: counts and moments on the device, which ranks add up.

Everything comes from the forward that trains; nothing waits for the device until it is described.
Shape letters: B batch, L length, K masked positions a sequence, N any positions in a row.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from foundation.stats import auc_of_counts, pearson
from pretrain.data.batches import Batch
from pretrain.method.electra import ElectraOutput
from pretrain.method.objectives.mlm import MaskedLMOutput
from pretrain.training.curves import Histogram


class Bins(NamedTuple):
    """Equal bins from `low` to `high`; what lies beyond counts in the first or the last."""

    low: float
    high: float
    number: int

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.number

    def place(self, values: Tensor) -> Tensor:
        """The bin of each value, int64; of what is not a number, the first."""
        return ((values - self.low) / self.width).clamp(0, self.number - 1).nan_to_num(0.0).long()


LOGIT = Bins(-20.0, 20.0, 2000)
"""Of the discriminator; two logits nearer than 0.02 count as equal in the AUC, beyond 20 D is 1 in fp32."""
LOG_RATIO = Bins(-12.0, 12.0, 480)
"""Of p_G over the probability drawn with, in nats: a percentile is off by 2.5% at most."""
PROBABILITY = Bins(0.0, 1.0, 10)
"""Of the most likely token (paper, figure of the sampling distribution)."""
PERCENTILES = (1, 50, 90, 99)
"""Of the importance ratio."""

CLASSES = ("unmasked", "original", "replaced")
"""Of a visible position: not masked, masked and the original drawn, masked and another token drawn."""
MOMENTS = 6
"""1, a, b, a^2, b^2, ab, summed: what a correlation needs."""
PARTS = {
    "logit": len(CLASSES) * LOGIT.number,
    "log_ratio": LOG_RATIO.number,
    "max_p_G": PROBABILITY.number,
    "max_p_S": PROBABILITY.number,
    "entropy_p_G": 1,
    "entropy_p_S": 1,
    "estimate": 2 * MOMENTS,
}


class Distributions:
    """Sums over forwards that were asked for their entropies, as one float64 vector that ranks can add up."""

    def __init__(self, device: torch.device) -> None:
        self.vector = torch.zeros(sum(PARTS.values()), dtype=torch.float64, device=device)
        self._parts = split(self.vector)

    @torch.no_grad()
    def add(self, batch: Batch, output: ElectraOutput | MaskedLMOutput) -> None:
        generator = output.draw if isinstance(output, ElectraOutput) else output
        self._count_masked(batch, "max_p_G", PROBABILITY, generator.log_max_p_G_BK.exp())
        self._add_entropy(batch, "entropy_p_G", generator.entropy_p_G_BK)
        if not isinstance(output, ElectraOutput):
            return
        self._count_masked(batch, "max_p_S", PROBABILITY, output.draw.log_max_q_BK.exp())
        self._count_masked(batch, "log_ratio", LOG_RATIO, output.draw.log_ratio_BK)
        self._add_entropy(batch, "entropy_p_S", output.draw.entropy_q_BK)
        class_BL = batch.masked_BL + output.replaced_BL  # only masked positions are replaced
        self._count("logit", class_BL * LOGIT.number + LOGIT.place(output.d_BL), batch.attention_mask_BL)
        if output.draw.estimated_loss_BK is not None:
            self._add_estimate(batch, output, output.draw.estimated_loss_BK)

    def _count(self, part: str, index: Tensor, counted: Tensor) -> None:
        """`scatter_add_` rather than `bincount`, which waits for the device; counts are exact in any order."""
        self._parts[part].scatter_add_(0, index.flatten(), counted.flatten().double())

    def _count_masked(self, batch: Batch, part: str, bins: Bins, values_BK: Tensor) -> None:
        self._count(part, bins.place(values_BK), batch.masked_valid_BK)

    def _add_entropy(self, batch: Batch, part: str, entropy_BK: Tensor | None) -> None:
        assert entropy_BK is not None, "the forward was not asked for entropies"
        self._parts[part] += entropy_BK.where(batch.masked_valid_BK, 0.0).sum(dtype=torch.float64)

    def _add_estimate(self, batch: Batch, output: ElectraOutput, estimate_BK: Tensor) -> None:
        """Estimated and actual L_D at the drawn tokens, by class."""
        positions_BK, valid_BK = batch.masked_positions_BK, batch.masked_valid_BK
        other_BK = output.replaced_BL.gather(1, positions_BK)
        a_N = estimate_BK.double().flatten()
        b_N = output.discriminator_loss_BL.gather(1, positions_BK).double().flatten()
        features_N6 = torch.stack((torch.ones_like(a_N), a_N, b_N, a_N * a_N, b_N * b_N, a_N * b_N), dim=1)
        classes_2N = torch.stack((valid_BK & ~other_BK, valid_BK & other_BK)).flatten(1).double()
        self._parts["estimate"] += (classes_2N @ features_N6).flatten()


def split(vector: Tensor) -> dict[str, Tensor]:
    """The parts of a vector, by name."""
    return dict(zip(PARTS, vector.split(list(PARTS.values())), strict=True))


def describe(vector: Tensor) -> dict[str, Any]:
    """What the sums say, under the names that `evaluate.py` uses; what cannot be said is left out."""
    parts = split(vector.cpu())
    values = _beliefs(parts, "p_G")
    if parts["max_p_S"].sum():
        ours = _beliefs(parts, "p_S")
        values = {name: values[name] | ours[name] for name in values}
        targets = torch.tensor(PERCENTILES, dtype=torch.float64) / 100 * parts["log_ratio"].sum()
        places = torch.searchsorted(parts["log_ratio"].cumsum(0), targets)
        ratios = (LOG_RATIO.low + (places.double() + 0.5) * LOG_RATIO.width).exp()  # the middles of their bins
        # Area under the ROC curve of telling replaced from original, over all positions and the masked ones. Two logits
        # in one bin count half, as equal ones do: off by half the share of such pairs at most.
        unmasked, original, replaced = parts["logit"].view(len(CLASSES), LOGIT.number).numpy()
        negatives = {"auc_all": unmasked + original, "auc_masked": original}
        values |= _existing({name: auc_of_counts(negative, replaced) for name, negative in negatives.items()})
        values |= {f"ratio_p{name}": value for name, value in zip(PERCENTILES, ratios.tolist(), strict=True)}
    # Pearson correlation of estimated and actual L_D at the drawn tokens (paper section 5), where both vary
    original, replaced = parts["estimate"].view(2, MOMENTS).numpy()
    groups = {"original": original, "replaced": replaced, "all": original + replaced}
    if correlations := _existing({name: pearson(group) for name, group in groups.items()}):
        values["estimate_correlation"] = correlations
    return values


def _existing(values: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if np.isfinite(value)}


def _beliefs(parts: dict[str, Tensor], name: str) -> dict[str, Any]:
    """Mean entropy in nats and the share of maximum probabilities in each tenth, of p_G or p_S."""
    counts = parts[f"max_{name}"]
    number = counts.sum().clamp(min=1)
    return {
        "entropy": {name: (parts[f"entropy_{name}"] / number).item()},
        "max_probability": {name: (counts / number).tolist()},
    }


def histograms(vector: Tensor) -> dict[str, Histogram]:
    """What is worth a picture and was counted at all; in at most 120 bins, for the sake of the log's size.

    The likeliest tokens' probabilities are in `describe`, tenth by tenth.
    """
    parts = split(vector.cpu())
    unmasked, original, replaced = parts["logit"].view(len(CLASSES), LOGIT.number)
    counted = {
        "logit/original": (LOGIT, unmasked + original, 20),
        "logit/replaced": (LOGIT, replaced, 20),
        "log_ratio": (LOG_RATIO, parts["log_ratio"], 4),
    }
    found = {}
    for name, (bins, counts, factor) in counted.items():
        if counts.any():
            edges = np.linspace(bins.low, bins.high, bins.number // factor + 1).tolist()
            found[name] = Histogram(edges, counts.view(-1, factor).sum(1).tolist())
    return found
