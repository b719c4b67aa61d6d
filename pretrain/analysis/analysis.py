"""The paper's analysis of a trained model: detection, accuracy of the sampling head's estimated loss, and confidence of
the sampling distribution; each number with a bootstrap over sequences. Beside it the regime: whether p_G is sure enough
of the originals for samplers to differ, as in the paper's runs, or near unigrams, where it hardly ever draws one.

Shape letters: C columns to sum, S sequences.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from electra_sampler.foundation.stats import (
    Interval,
    ResampledStatistic,
    auc,
    binary_entropy,
    correlation,
    mean,
    placements,
    resample,
    sums,
)
from pretrain.analysis.observation import Judgment, Observations, OriginalTokens, Recording

BINS = 10
"""Bins of the maximum probability (paper, figure of the sampling distribution)."""
LEAST_ORIGINALS = 0.2
"""Share of originals among the draws, below which samplers cannot be told apart. Of p_G: .045 in our studies of
`tiny` (docs/evidence/results.md), about .6 by ELECTRA's author (ymcui/Chinese-ELECTRA #19)."""

PAPER: dict[str, Any] = {
    "detection": {
        "p_G": {"accuracy_masked": 0.81, "accuracy_all": 0.96},
        "p_S": {"accuracy_masked": 0.72, "accuracy_all": 0.95},
    },
    "estimate_quality": {"pearson": {"original": 0.78, "replaced": 0.61, "all": 0.64}},
}
"""The paper's section 5: detection accuracy of ELECTRA under p_G and of HP_Loss + focal under p_S; correlation of
HP_Loss's estimated with the actual loss."""


def generator(originals: OriginalTokens) -> dict[str, ResampledStatistic]:
    """Returns accuracy and cross-entropy (nats per masked position) of the generator or masked language model."""
    log_p_original, predicted, sequence = originals
    columns = (predicted, -log_p_original.astype(np.float64), np.ones(len(predicted)))
    sums_CS = sums(sequence, int(sequence[-1]) + 1, *columns)
    return {"mlm_accuracy": resample(sums_CS[[0, 2]], mean), "mlm_loss": resample(sums_CS[[1, 2]], mean)}


def detection(judgment: Judgment) -> dict[str, ResampledStatistic]:
    """Returns the detection metrics of replaced tokens; losses and entropies in nats per position.

    `discriminator_entropy` is the entropy of the replaced share: the loss of always predicting that share.
    """
    d, replaced, masked, sequence = judgment
    sequences = int(sequence[-1]) + 1
    right, loss = (d > 0) == replaced, np.logaddexp(0, np.where(replaced, -d, d).astype(np.float64))
    of_all, of_masked = (
        sums(sequence[group], sequences, *(column[group] for column in (np.ones_like(loss), right, replaced, loss)))
        for group in (np.ones_like(masked), masked)
    )
    return {
        "accuracy_masked": resample(of_masked[[1, 0]], mean),
        "accuracy_all": resample(of_all[[1, 0]], mean),
        "auc_all": auc(d, replaced, sequence, sequences),
        "auc_masked": auc(d[masked], replaced[masked], sequence[masked], sequences),
        "discriminator_loss": resample(of_all[[3, 0]], mean),
        "discriminator_entropy": resample(of_all[[2, 0]], lambda part: binary_entropy(mean(part))),
        "loss_over_entropy": resample(
            of_all[[3, 2, 0]], lambda part: part[0] / part[2] / binary_entropy(mean(part[1:]))
        ),
        "replaced_share": resample(of_all[[2, 0]], mean),
    }


SUMMED = ("tokens", "replaced", "masked", "right", "masked_right", "loss", "placed_replaced", "placed_original")
"""Rows of `sequence_sums`."""


def sequence_sums(judgment: Judgment) -> np.ndarray:
    """Returns the sums of each sequence [C, S] in fp32, in the order of `SUMMED`, for bootstraps over several runs.

    `placed_replaced` and `placed_original` sum the `placements` of replaced and of original tokens, for the AUC.
    """
    d, replaced, masked, sequence = judgment
    right, loss = (d > 0) == replaced, np.logaddexp(0, np.where(replaced, -d, d).astype(np.float64))
    placed = placements(d, replaced)
    columns = (np.ones_like(loss), replaced, masked, right, right & masked, loss, placed * replaced, placed * ~replaced)
    return sums(sequence, int(sequence[-1]) + 1, *columns).astype(np.float32)


def estimate_quality(observations: Observations) -> dict[str, dict[str, ResampledStatistic]]:
    """Returns Pearson correlations of estimated and actual discriminator loss at the sampled tokens (paper section 5),
    for originals, replaced tokens and both; empty if the objective has no estimate.

    `class_means` is a baseline that predicts the mean loss of each token's class. It is fitted on the losses that it is
    judged by, which flatters it.
    """
    estimated, actual, other = observations.estimated_loss, observations.actual_loss, observations.sampled_other
    if not len(estimated):
        return {}
    sequence, sequences = observations.sequence, observations.sequences
    groups = {"original": ~other, "replaced": other, "all": np.ones_like(other)}
    pearson = {
        name: correlation(estimated[group], actual[group], sequence[group], sequences) for name, group in groups.items()
    }
    means = np.where(other, *(actual[group].mean() if group.any() else 0.0 for group in (other, ~other)))
    pearson["class_means"] = correlation(means, actual, sequence, sequences)
    pearson["all_minus_class_means"] = pearson["all"].minus(pearson["class_means"])
    return {"pearson": pearson}


def certainty(observations: Observations) -> tuple[list[ResampledStatistic], ResampledStatistic]:
    """Returns, for the sampling distribution, the share of masked positions with a maximum probability in each tenth of
    [0, 1], and the entropy in nats per masked position.
    """
    tenths = np.minimum((observations.largest_q * BINS).astype(int), BINS - 1)
    columns = (np.ones(len(tenths)), observations.entropy_q, *(tenths == number for number in range(BINS)))
    sums_CS = sums(observations.sequence, observations.sequences, *columns)
    return [resample(sums_CS[[2 + number, 0]], mean) for number in range(BINS)], resample(sums_CS[[1, 0]], mean)


def weighted_loss(observations: Observations) -> dict[str, ResampledStatistic]:
    """Returns the importance-sampling estimate of E_{p_G}[L_D] at masked positions: each sample is weighted by p_G over
    the probability it was drawn with.

    `variance` is of a single sample; `effective_share` is Kish's effective sample size over the number of samples.
    """
    weight = observations.ratio.astype(np.float64)
    values = weight * observations.actual_loss
    columns = (values, np.ones_like(values), values**2, weight, weight**2)
    sums_CS = sums(observations.sequence, observations.sequences, *columns)
    return {
        "mean": resample(sums_CS[:2], mean),
        "variance": resample(sums_CS[:3], lambda part: part[2] / part[1] - mean(part) ** 2),
        "effective_share": resample(sums_CS[[3, 4, 1]], lambda part: part[0] ** 2 / part[1] / part[2]),
    }


def analyze(observed: Recording) -> dict[str, Any]:
    """Returns every number of the analysis, in sections; for a masked language model only `generator`.

    If there is a p_S, `p_S_minus_p_G` holds the differences between the two distributions, paired by sequence.
    """
    of_generator: dict[str, Any] = {"generator": generator(observed.originals)}
    if not observed.under:
        return of_generator
    certain = {name: certainty(seen) for name, seen in observed.under.items()}
    found: dict[str, Any] = {
        "detection": {name: detection(seen.judgment) for name, seen in observed.under.items()},
        "loss_estimate": {name: weighted_loss(seen) for name, seen in observed.under.items()},
        "max_probability": {name: shares for name, (shares, _) in certain.items()},
        "entropy": {name: entropy for name, (_, entropy) in certain.items()},
    }
    if "p_S" in observed.under:
        found["p_S_minus_p_G"] = {
            name: _each(ResampledStatistic.minus, part["p_S"], part["p_G"]) for name, part in found.items()
        }
    found["estimate_quality"] = estimate_quality(observed.learned)
    return of_generator | found


def as_json(value: Any) -> Any:
    """Converts each number of a nested structure to `[value, low, high]`."""
    return _each(ResampledStatistic.interval, value)


def _each(function: Callable[..., Any], *parts: Any) -> Any:
    """Applies a function to the numbers at each place of structures of the same form; returns one of that form."""
    if isinstance(parts[0], dict):
        return {name: _each(function, *(part[name] for part in parts)) for name in parts[0]}
    if isinstance(parts[0], list):
        return [_each(function, *items) for items in zip(*parts, strict=True)]
    return function(*parts)


def headline(numbers: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers that model card and quickstart show: under the objective's own distribution, without
    intervals.
    """
    detection = numbers["detection"].get("p_S", numbers["detection"]["p_G"])
    pearson = numbers["estimate_quality"].get("pearson", {})
    return {
        "auc_all": _value(detection["auc_all"]),
        "auc_masked": _value(detection["auc_masked"]),
        "estimate_correlation": {name: _value(pearson.get(name)) for name in ("original", "replaced", "all")},
    }


def _value(interval: Interval) -> float | None:
    return None if interval is None else interval[0]


def unigram_entropy(counts_V: np.ndarray) -> float:
    """Returns the entropy in nats of word pieces that occur this often: the MLM loss of predicting frequencies."""
    shares = counts_V[counts_V > 0] / counts_V.sum()
    return float(-(shares * np.log(shares)).sum())


def regime(originals: float, sure: float, below_unigrams: float, replaced: float) -> str:
    """Describes a regime beside the paper's: the share of draws that are originals, of p_G's maxima above .9, the nats
    of the MLM loss below the unigram entropy, and the share of all tokens replaced; NaN for what is unknown.
    """
    side = "below" if below_unigrams > 0 else "above"
    known = {
        f"{originals:.1%} of the draws are originals (ELECTRA's authors: about 60%)": originals,
        f"{sure:.1%} of p_G's maxima are above .9": sure,
        f"the MLM loss is {abs(below_unigrams):.2f} nats {side} the unigram entropy": below_unigrams,
        f"{replaced:.1%} of all tokens are replaced (about 7%)": replaced,
    }
    near = "; generator still near unigrams: samplers cannot differ yet" if originals < LEAST_ORIGINALS else ""
    return ", ".join(part for part, value in known.items() if not np.isnan(value)) + near
