"""What the paper's analysis asks of a trained model: detection, how well the sampling head knows the loss, and how
sure the sampling distribution is.

Shape letters: B batch, L length, K masked positions a sequence.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.data import Batch
from pretrain.electra import Electra, ElectraOutput
from pretrain.intervals import correlation_interval, mean_interval
from pretrain.masked_lm import MaskedLM
from pretrain.metrics import MetricSums, summary

BINS = 10
"""Of the maximum probability (paper, figure of the sampling distribution)."""


class Observations(NamedTuple):
    """One value a visible position (first four) or a masked position (the rest), over all batches."""

    d: np.ndarray
    """The discriminator's logit; above 0 it says "replaced"."""
    replaced: np.ndarray
    masked: np.ndarray
    """Whether the position was masked: the others can never be replaced."""
    sequence: np.ndarray
    """Number of the sequence."""
    estimated_loss: np.ndarray
    """L_hat of the sampled token, by the sampling head; empty where the objective gives none."""
    actual_loss: np.ndarray
    """L_D at the same positions."""
    sampled_other: np.ndarray
    """Whether the sampled token differs from the original."""
    ratio: np.ndarray
    """p_G of the sampled token over the probability it was sampled with."""
    largest_p_G: np.ndarray
    """Probability of the generator's most likely token."""
    largest_q: np.ndarray
    """The same of the distribution sampled from."""

    @property
    def masked_sequence(self) -> np.ndarray:
        """Number of the sequence of each masked position."""
        return self.sequence[self.masked]


@torch.no_grad()
def observe(
    model: Electra, batches: Iterable[Batch], device: torch.device, from_generator: bool = False
) -> tuple[Observations, dict[str, float]]:
    """Runs the model in evaluation mode over the batches; returns observations and the metrics training reports.

    `from_generator` samples the replacements from p_G instead of what the objective samples from.
    """
    model.eval()
    sums, parts, sequences = MetricSums(device), [], 0
    for batch in batches:
        batch = batch.to(device)
        output = model(batch, from_generator)
        sums.add(batch, output)
        parts.append(_observe_batch(batch, output, sequences))
        sequences += len(batch.input_ids_BL)
    columns = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return Observations(*columns), summary(sums.vector)


@torch.no_grad()
def masked_lm_metrics(model: MaskedLM, batches: Iterable[Batch], device: torch.device) -> dict[str, float]:
    """The metrics of a model that replaces nothing."""
    model.eval()
    sums = MetricSums(device)
    for batch in batches:
        batch = batch.to(device)
        sums.add(batch, model(batch))
    return summary(sums.vector)


def _observe_batch(batch: Batch, output: ElectraOutput, first_sequence: int) -> tuple[Tensor, ...]:
    """Masked positions in the order of their place in the sequence, as visible positions are."""
    visible_BL, positions_BK = batch.attention_mask_BL, batch.masked_positions_BK
    masked_BL = torch.zeros_like(visible_BL, dtype=torch.int64)
    masked_BL = masked_BL.scatter_add(1, positions_BK, batch.masked_valid_BK.long()) > 0
    rows_B = torch.arange(first_sequence, first_sequence + len(visible_BL), device=visible_BL.device)
    valid_BK, drawn = batch.masked_valid_BK, output.draw
    other_BK = output.replaced_BL.gather(1, positions_BK)
    if drawn.z_BK is None:
        estimate_X = output.d_BL.new_empty(0)
    else:
        estimate_X = F.softplus(torch.where(other_BK, drawn.z_BK, -drawn.z_BK))[valid_BK]
    return (
        output.d_BL[visible_BL],
        output.replaced_BL[visible_BL],
        masked_BL[visible_BL],
        rows_B[:, None].expand_as(visible_BL)[visible_BL],
        estimate_X,
        output.discriminator_loss_BL.gather(1, positions_BK)[valid_BK],
        other_BK[valid_BK],
        drawn.log_ratio_BK.exp()[valid_BK],
        drawn.log_max_p_G_BK.exp()[valid_BK],
        drawn.log_max_q_BK.exp()[valid_BK],
    )


def detection(observations: Observations) -> dict[str, Any]:
    """Accuracy of the discriminator at masked and at all positions, each `[value, low, high]`, and how much was
    replaced.
    """
    right = ((observations.d > 0) == observations.replaced).astype(float)
    groups = {"accuracy_masked": observations.masked, "accuracy_all": np.ones_like(observations.masked)}
    accuracies = {
        name: [float(right[group].mean()), *mean_interval(right[group], observations.sequence[group])]
        for name, group in groups.items()
    }
    return {**accuracies, "replaced_share": float(observations.replaced.mean()), **detection_auc(observations)}


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
    return {
        name: _correlation(observations.estimated_loss[group], observations.actual_loss[group])
        if len(observations.estimated_loss)
        else None
        for name, group in _classes(observations).items()
    }


def estimate_quality(observations: Observations) -> dict[str, Any]:
    """The same correlations as `[value, low, high]`, Spearman's, and that of knowing the class and nothing else.

    `class_means` predicts for each sampled token the mean loss of its class, original or replaced: fitted here, on
    the very losses it is judged by, which flatters it.
    """
    from scipy.stats import rankdata

    estimated, actual, other = observations.estimated_loss, observations.actual_loss, observations.sampled_other
    if not len(estimated):
        return {}
    sequence = observations.masked_sequence
    result: dict[str, Any] = {"pearson": {}, "spearman": {}}
    for name, group in _classes(observations).items():
        result["pearson"][name] = _with_interval(estimated[group], actual[group], sequence[group])
        ranks = [rankdata(values[group]) for values in (estimated, actual)]
        result["spearman"][name] = _with_interval(ranks[0], ranks[1], sequence[group])
    means = np.where(other, *(actual[group].mean() if group.any() else 0.0 for group in (other, ~other)))
    result["pearson"]["class_means"] = _with_interval(means, actual, sequence)
    return result


def max_probability_shares(observations: Observations) -> dict[str, list[float]]:
    """Share of masked positions whose most likely token has a probability in each tenth of [0, 1]."""
    edges = np.linspace(0, 1, BINS + 1)
    return {
        name: (np.histogram(np.minimum(values, 1.0), edges)[0] / max(1, len(values))).tolist()
        for name, values in (("p_G", observations.largest_p_G), ("p_S", observations.largest_q))
    }


def loss_estimate(observations: Observations) -> dict[str, float]:
    """The estimate of E_{p_G}[L_D] at masked positions by weighing each sample with p_G over its probability.

    `variance` is of one sample; `effective_share` is the effective sample size (Kish) over the number of samples.
    """
    weight, values = observations.ratio, observations.ratio * observations.actual_loss
    return {
        "mean": float(values.mean()),
        "variance": float(values.var()),
        "effective_share": float(weight.sum() ** 2 / (weight**2).sum() / len(weight)),
    }


def _classes(observations: Observations) -> dict[str, np.ndarray]:
    other = observations.sampled_other
    return {"original": ~other, "replaced": other, "all": np.ones_like(other)}


def _with_interval(a: np.ndarray, b: np.ndarray, sequence: np.ndarray) -> list[float] | None:
    correlation = _correlation(a, b)
    return None if correlation is None else [correlation, *correlation_interval(a, b, sequence)]


def _correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    if len(a) < 2 or not np.ptp(a) or not np.ptp(b):
        return None
    return float(np.corrcoef(a, b)[0, 1])
