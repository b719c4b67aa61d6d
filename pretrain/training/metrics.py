"""Metrics of training and evaluation: running sums, histograms and moments over positions.

All values come from the forwards of the run and are kept on the device; the host waits for it only when they are read.
Shape letters: B batch, L length, K masked positions per sequence, N positions, flattened.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra_sampler.foundation.config import ConfigError, refuse
from electra_sampler.foundation.stats import auc_of_counts, binary_entropy, pearson
from pretrain.data.batches import Batch
from pretrain.engine.engine import Engine
from pretrain.job.processes import World
from pretrain.method.electra import Sampler
from pretrain.method.objective import Detected, Output
from pretrain.runs.curves import Histogram

SUMS = (
    "masked",
    "tokens",
    "generator_loss",
    "mlm_loss",
    "mlm_correct",
    "judged",
    "sampler_loss",
    "replaced",
    "discriminator_loss",
    "detected_masked",
    "detected",
    "suspected",
    "found",
    "undefined",
)


def summary(vector: Tensor) -> dict[str, float]:
    """Returns means from the summed vector, losses in nats per position; without a discriminator, the generator's only.

    `replace_rate` is the replaced share of masked positions, `replaced_share` of all positions: the base rate of
    detection. `discriminator_entropy` is the entropy of `replaced_share`: the loss of always predicting the base rate.
    `precision` and `recall` are for the class "replaced", and 0 if their denominator is 0.

    Raises:
        ConfigError: a replacement was drawn from weights that are no distribution.
    """
    sums: Mapping[str, float] = dict(zip(SUMS, vector.tolist(), strict=True))
    masked, tokens = max(sums["masked"], 1.0), max(sums["tokens"], 1.0)
    generator = {
        "tokens": sums["tokens"],
        "generator_loss": sums["generator_loss"] / masked,
        "mlm_loss": sums["mlm_loss"] / masked,
        "mlm_accuracy": sums["mlm_correct"] / masked,
    }
    if not sums["judged"]:
        return generator
    if sums["undefined"]:
        raise ConfigError(
            f"objective: {sums['undefined']:,.0f} of {masked:,.0f} replacements were drawn by weights that are no"
            " distribution; correct the sampler's `draw`: weights must be finite, none negative, and not all 0"
        )
    replaced_share = sums["replaced"] / tokens
    return generator | {
        "sampler_loss": sums["sampler_loss"] / masked,
        "discriminator_loss": sums["discriminator_loss"] / tokens,
        "discriminator_entropy": float(binary_entropy(replaced_share)),
        "replaced_share": replaced_share,
        "replace_rate": sums["replaced"] / masked,
        "accuracy_masked": sums["detected_masked"] / masked,
        "accuracy_unmasked": (sums["detected"] - sums["detected_masked"]) / max(tokens - masked, 1.0),
        "accuracy_all": sums["detected"] / tokens,
        "precision": sums["found"] / max(sums["suspected"], 1.0),
        "recall": sums["found"] / max(sums["replaced"], 1.0),
    }


class Bins(NamedTuple):
    """Equal-width bins from `low` to `high`; values outside count in the first or last bin."""

    low: float
    high: float
    number: int

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.number

    def place(self, values: Tensor) -> Tensor:
        """Returns the bin index of each value, int64; NaN goes to the first bin."""
        return ((values - self.low) / self.width).clamp(0, self.number - 1).nan_to_num(0.0).long()


LOGIT = Bins(-20.0, 20.0, 2000)
"""Bins of the discriminator's logit. In the AUC, logits in one 0.02 bin count as equal; beyond 20, D is 1 in fp32."""
LOG_RATIO = Bins(-12.0, 12.0, 480)
"""Bins of the log of p_G(x') over the probability x' was drawn with, in nats; a percentile is off by at most 2.5%."""
PROBABILITY = Bins(0.0, 1.0, 10)
"""Bins of the most likely token's probability (paper, figure of the sampling distribution)."""
PERCENTILES = (1, 50, 90, 99)
"""Reported percentiles of the importance ratio."""

CLASSES = ("unmasked", "original", "replaced")
"""Classes of a non-pad position: not masked; masked, original drawn; masked, another token drawn."""
MOMENTS = 6
"""Sums of 1, a, b, a^2, b^2 and ab, from which a Pearson correlation follows."""
PARTS = {
    "logit": len(CLASSES) * LOGIT.number,
    "log_ratio": LOG_RATIO.number,
    "max_p_G": PROBABILITY.number,
    "max_p_S": PROBABILITY.number,
    "entropy_p_G": 1,
    "entropy_p_S": 1,
    "estimate": 2 * MOMENTS,
}


class MetricTotals:
    """Sums over this rank's forwards, in two float64 vectors that can be all-reduced.

    `sums`, [len(SUMS)], counts every forward; `distributions`, with the parts of `PARTS`, those with entropies.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.distributions = torch.zeros(sum(PARTS.values()), dtype=torch.float64, device=device)
        self._parts = split(self.distributions)

    @torch.no_grad()
    def add(self, batch: Batch, output: Output, watched: bool) -> None:
        """Adds one micro-batch; `watched` means that its forward also computed entropies."""
        terms = _terms(batch, output)
        self.sums[: len(terms)] += torch.stack([term.sum(dtype=torch.float64) for term in terms])
        if watched:
            self._watch(batch, output)

    def values(self, world: World) -> dict[str, Any]:
        """Returns the metrics of everything added on any rank, by name. Collective."""
        sums, distributions = (world.sum_over_ranks(part.clone()) for part in (self.sums, self.distributions))
        return summary(sums) | describe(distributions)

    def _watch(self, batch: Batch, output: Output) -> None:
        self._count_masked(batch, "max_p_G", PROBABILITY, output.log_max_p_G_BK.exp())
        self._add_entropy(batch, "entropy_p_G", output.entropy_p_G_BK)
        if output.detected is None:
            return
        draw, _, _, d_BL, replaced_BL = output.detected
        self._count_masked(batch, "max_p_S", PROBABILITY, draw.log_max_q_BK.exp())
        self._count_masked(batch, "log_ratio", LOG_RATIO, draw.log_ratio_BK)
        self._add_entropy(batch, "entropy_p_S", draw.entropy_q_BK)
        class_BL = batch.masked_BL + replaced_BL  # only masked positions are replaced
        self._count("logit", class_BL * LOGIT.number + LOGIT.place(d_BL), batch.attention_mask_BL)
        if draw.estimated_loss_BK is not None:
            self._add_estimate(batch, output.detected, draw.estimated_loss_BK)

    def _count(self, part: str, index: Tensor, counted: Tensor) -> None:
        """Adds the bins `index`, where `counted` is true, to the histogram `part`.

        Uses `scatter_add_`, since `bincount` waits for the device; counts are exact in any order.
        """
        self._parts[part].scatter_add_(0, index.flatten(), counted.flatten().double())

    def _count_masked(self, batch: Batch, part: str, bins: Bins, values_BK: Tensor) -> None:
        self._count(part, bins.place(values_BK), batch.masked_valid_BK)

    def _add_entropy(self, batch: Batch, part: str, entropy_BK: Tensor | None) -> None:
        assert entropy_BK is not None, "the forward was not asked for entropies"
        self._parts[part] += entropy_BK.where(batch.masked_valid_BK, 0.0).sum(dtype=torch.float64)

    def _add_estimate(self, batch: Batch, detected: Detected, estimate_BK: Tensor) -> None:
        """Adds the moments of estimated and actual L_D at the drawn tokens, by class."""
        positions_BK, valid_BK = batch.masked_positions_BK, batch.masked_valid_BK
        other_BK = detected.replaced_BL.gather(1, positions_BK)
        a_N = estimate_BK.double().flatten()
        b_N = detected.discriminator_loss_BL.gather(1, positions_BK).double().flatten()
        features_N6 = torch.stack((torch.ones_like(a_N), a_N, b_N, a_N * a_N, b_N * b_N, a_N * b_N), dim=1)
        classes_2N = torch.stack((valid_BK & ~other_BK, valid_BK & other_BK)).flatten(1).double()
        self._parts["estimate"] += (classes_2N @ features_N6).flatten()


def _terms(batch: Batch, output: Output) -> list[Tensor]:
    """Returns the terms to sum, in the order of `SUMS`; without a discriminator, those before `judged` only.

    Raises:
        ConfigError: the sampler did not return one value per masked position.
    """
    valid_BK, visible_BL = batch.masked_valid_BK, batch.attention_mask_BL
    original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    terms = [
        valid_BK,
        visible_BL,
        output.generator_loss_BK * valid_BK,
        -output.log_p_original_BK * valid_BK,
        (output.top_BK == original_BK) & valid_BK,
    ]
    if output.detected is not None:
        draw, sampler_loss_BK, loss_D_BL, d_BL, replaced_BL = output.detected
        refuse(
            f"objective: {name} of a draw has shape {[*part.shape]}, expected {[*valid_BK.shape]}, a value per masked"
            " position; correct the sampler's `draw`"
            for name, part in {**draw._asdict(), "L_S": sampler_loss_BK}.items()
            if part is not None and part.shape != valid_BK.shape  # which might broadcast
        )
        suspected_BL = (d_BL > 0) & visible_BL
        right_BL = (suspected_BL == replaced_BL) & visible_BL
        terms += [
            visible_BL,
            sampler_loss_BK * valid_BK,
            replaced_BL,
            loss_D_BL * visible_BL,
            right_BL.gather(1, batch.masked_positions_BK) & valid_BK,
            right_BL,
            suspected_BL,
            suspected_BL & replaced_BL,
            valid_BK & ~torch.stack([part for part in draw[1:] if part is not None]).isfinite().all(0),
        ]
    return terms


def split(vector: Tensor) -> dict[str, Tensor]:
    """Returns views of the vector's parts, by name as in `PARTS`."""
    return dict(zip(PARTS, vector.split(list(PARTS.values())), strict=True))


def describe(vector: Tensor) -> dict[str, Any]:
    """Returns metrics from the sums, under the names that `evaluate.py` uses; undefined values are left out."""
    parts = split(vector.cpu())
    values = _beliefs(parts, "p_G")
    if parts["max_p_S"].sum():
        values = {name: values[name] | of_p_S for name, of_p_S in _beliefs(parts, "p_S").items()}
        targets = torch.tensor(PERCENTILES, dtype=torch.float64) / 100 * parts["log_ratio"].sum()
        places = torch.searchsorted(parts["log_ratio"].cumsum(0), targets)
        ratios = (LOG_RATIO.low + (places.double() + 0.5) * LOG_RATIO.width).exp()  # the centers of their bins
        # Area under the ROC curve for detecting replaced tokens, over all and over masked positions. Two logits in one
        # bin count half, like equal ones: the error is at most half the share of such pairs.
        unmasked, original, replaced = parts["logit"].view(len(CLASSES), LOGIT.number).numpy()
        negatives = {"auc_all": unmasked + original, "auc_masked": original}
        values |= _existing({name: auc_of_counts(negative, replaced) for name, negative in negatives.items()})
        values |= {f"ratio_p{name}": value for name, value in zip(PERCENTILES, ratios.tolist(), strict=True)}
    # Pearson correlation of estimated and actual L_D at the drawn tokens (paper section 5), if both vary
    original, replaced = parts["estimate"].view(2, MOMENTS).numpy()
    groups = {"original": original, "replaced": replaced, "all": original + replaced}
    if correlations := _existing({name: pearson(group) for name, group in groups.items()}):
        values["estimate_correlation"] = correlations
    return values


def _existing(values: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if np.isfinite(value)}


def _beliefs(parts: dict[str, Tensor], name: str) -> dict[str, Any]:
    """Returns mean entropy in nats and the share of maximum probabilities in each tenth of [0, 1], for p_G or p_S."""
    counts = parts[f"max_{name}"]
    number = counts.sum().clamp(min=1)
    return {
        "entropy": {name: (parts[f"entropy_{name}"] / number).item()},
        "max_probability": {name: (counts / number).tolist()},
    }


def histograms(vector: Tensor) -> dict[str, Histogram]:
    """Returns the non-empty histograms of logits and log ratios, merged to at most 120 bins to keep the log small.

    Histograms of the maximum probabilities are in `describe`.
    """
    parts = split(vector.cpu())
    unmasked, original, replaced = parts["logit"].view(len(CLASSES), LOGIT.number)
    counted = {
        "logit/original": (LOGIT, unmasked + original, 20),
        "logit/replaced": (LOGIT, replaced, 20),
        "log_ratio": (LOG_RATIO, parts["log_ratio"], 4),
    }
    return {
        name: Histogram(
            np.linspace(bins.low, bins.high, bins.number // factor + 1).tolist(),
            counts.view(-1, factor).sum(1).tolist(),
        )
        for name, (bins, counts, factor) in counted.items()
        if counts.any()
    }


@torch.no_grad()
def evaluate(engine: Engine, batches: Iterable[Batch], progress: Callable[[str], None]) -> dict[str, Any]:
    """Returns the metrics on held-out text, over all ranks. Collective.

    Where a sampler replaces p_G, also the accuracy of detection under both (paper, appendix).
    """
    reported, under_p_G = MetricTotals(engine.device), MetricTotals(engine.device)
    engine.module.eval()
    for batch in batches:
        progress("a batch of the evaluation")
        batch = batch.to(engine.device)
        reported.add(batch, engine.forward(batch, entropies=True), watched=True)
        if isinstance(engine.module, Sampler):
            under_p_G.add(batch, engine.forward(batch, from_p_G=True), watched=False)
    engine.module.train()
    values = reported.values(engine.world)
    if isinstance(engine.module, Sampler):
        of_p_G = under_p_G.values(engine.world)
        for name in ("accuracy_masked", "accuracy_all"):
            values[f"{name}_under"] = {"p_G": of_p_G[name], "p_S": values[name]}
    return values
