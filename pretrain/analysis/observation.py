"""Runs a trained model over held-out text and records, per position, its samples and the discriminator's answers.

Shape letters: B batch, L length, K masked positions per sequence, C candidates, S sequences, N positions of all
sequences.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra_sampler.foundation.stats import ResampledStatistic, mean, resample
from pretrain.data.batches import Batch
from pretrain.method.electra import Detection
from pretrain.method.losses import discriminator_loss
from pretrain.method.objective import Detected, Objective
from pretrain.training.metrics import MetricTotals, summary

CANDIDATES = 16
"""Number of quantiles of p_G in `oracle_distance`; each costs a forward of the discriminator."""
LEAST_LOSS = 1e-6


class Judgment(NamedTuple):
    """A discriminator's answers on one set of replacements; one value per non-pad position, [N] over all sequences."""

    d: np.ndarray
    """The logit; above 0 means "replaced"."""
    replaced: np.ndarray
    """True if the token differs from the original."""
    masked: np.ndarray
    """True if the position was masked; only these can be replaced."""
    sequence: np.ndarray
    """Index of the sequence."""


class OriginalTokens(NamedTuple):
    """Predictions of the original tokens by the generator or masked language model; one value per masked position."""

    log_p_original: np.ndarray
    """Log-probability of the original token."""
    predicted: np.ndarray
    """True if the most likely token is the original."""
    sequence: np.ndarray
    """Index of the sequence."""


class Observations(NamedTuple):
    """Observations under one sampling distribution: one value per masked position, except in `judgment`."""

    judgment: Judgment
    estimated_loss: np.ndarray
    """The sampling head's estimate of the discriminator's loss; empty if the objective has none."""
    actual_loss: np.ndarray
    """The discriminator's loss at the same positions."""
    sampled_other: np.ndarray
    """True if the sampled token differs from the original."""
    ratio: np.ndarray
    """p_G (the generator's probability) of the sampled token over the probability with which it was sampled."""
    largest_q: np.ndarray
    """Largest probability of the sampling distribution."""
    entropy_q: np.ndarray
    """Entropy of the sampling distribution, in nats."""

    @property
    def sequence(self) -> np.ndarray:
        """Index of the sequence of each masked position."""
        return self.judgment.sequence[self.judgment.masked]

    @property
    def sequences(self) -> int:
        return int(self.judgment.sequence[-1]) + 1


class Recording(NamedTuple):
    """A model's predictions and discriminator outputs, recorded in one pass over the data."""

    originals: OriginalTokens
    under: dict[str, Observations]
    """Observations by sampling distribution: p_G, and p_S if the objective learns one; empty for a masked language
    model."""
    tokens: dict[str, Tensor]
    """The replacements [S, K] by sampling distribution, int32 on the CPU, for other discriminators to judge."""
    metrics: dict[str, float]
    """The metrics that training reports, with the objective's own sampling distribution."""

    @property
    def learned(self) -> Observations:
        """Observations under the objective's own sampling distribution: p_S if it learns one, else p_G."""
        return self.under.get("p_S", self.under["p_G"])


@torch.no_grad()
def observe(model: Objective, batches: Iterable[Batch], device: torch.device) -> Recording:
    """Runs the model in evaluation mode over the batches, once per sampling distribution; returns what it recorded.

    Here and below, the batches are on the model's device.
    """
    model.eval()
    metrics, sequences = MetricTotals(device), 0
    originals: list[tuple[Tensor, ...]] = []
    parts: dict[str, list[tuple[Tensor, ...]]] = defaultdict(list)
    tokens: dict[str, list[Tensor]] = defaultdict(list)
    for batch in batches:
        for name, output in model.outputs(batch).items():
            if detected := output.detected:
                seen = _judgment(batch, detected.d_BL, detected.replaced_BL, sequences)
                parts[name].append(_on_host(*seen, *_observe_masked(batch, detected)))
                tokens[name].append(detected.draw.tokens_BK.to("cpu", torch.int32))
        metrics.add(batch, output, watched=False)  # the last output, with the objective's own sampling distribution
        original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
        valid_BK = batch.masked_valid_BK
        columns_BK = (output.log_p_original_BK, output.top_BK == original_BK, _rows(valid_BK, sequences))
        originals.append(_on_host(*(column_BK[valid_BK] for column_BK in columns_BK)))
        sequences += len(batch.input_ids_BL)
    judged, columns = len(Judgment._fields), {name: _joined(parts[name]) for name in parts}
    return Recording(
        OriginalTokens(*_joined(originals)),
        {name: Observations(Judgment(*columns[name][:judged]), *columns[name][judged:]) for name in parts},
        {name: torch.cat(drawn) for name, drawn in tokens.items()},
        summary(metrics.sums),
    )


@torch.no_grad()
def judge(model: Detection, batches: Iterable[Batch], tokens_SK: Tensor, device: torch.device) -> Judgment:
    """Returns the discriminator's answers with `tokens` at the masked positions of the batches."""
    model.eval()
    parts, sequences = [], 0
    for batch in batches:
        tokens_BK = tokens_SK[sequences : sequences + len(batch.input_ids_BL)].to(device, torch.int64)
        parts.append(_on_host(*_judgment(batch, *model.discriminate(batch, tokens_BK), sequences)))
        sequences += len(batch.input_ids_BL)
    return Judgment(*_joined(parts))


def _on_host(*columns: Tensor) -> tuple[Tensor, ...]:
    return tuple(column.cpu() for column in columns)


def _joined(parts: list[tuple[Tensor, ...]]) -> list[np.ndarray]:
    return [torch.cat(column).numpy() for column in zip(*parts, strict=True)]


def _judgment(batch: Batch, d_BL: Tensor, replaced_BL: Tensor, first_sequence: int) -> tuple[Tensor, ...]:
    """Returns the columns of `Judgment` for one batch."""
    visible_BL = batch.attention_mask_BL
    columns_BL = (d_BL.float(), replaced_BL, batch.masked_BL > 0, _rows(visible_BL, first_sequence))
    return tuple(column_BL[visible_BL] for column_BL in columns_BL)


def _observe_masked(batch: Batch, detected: Detected) -> tuple[Tensor, ...]:
    """Returns the columns of `Observations`, except `judgment`, for the masked positions of one batch."""
    valid_BK, drawn = batch.masked_valid_BK, detected.draw
    assert drawn.entropy_q_BK is not None  # requested by `observe`
    other_BK = detected.replaced_BL.gather(1, batch.masked_positions_BK)
    return (
        detected.d_BL.new_empty(0) if drawn.estimated_loss_BK is None else drawn.estimated_loss_BK[valid_BK],
        detected.discriminator_loss_BL.gather(1, batch.masked_positions_BK)[valid_BK],
        other_BK[valid_BK],
        drawn.log_ratio_BK.exp()[valid_BK],
        drawn.log_max_q_BK.exp()[valid_BK],
        drawn.entropy_q_BK[valid_BK],
    )


def _rows(like: Tensor, first_sequence: int) -> Tensor:
    """Returns the index of its sequence for each element of a [B, any] tensor."""
    return torch.arange(first_sequence, first_sequence + len(like), device=like.device)[:, None].expand_as(like)


@torch.no_grad()
def oracle_distance(
    model: Detection, batches: Iterable[Batch], candidates: int = CANDIDATES
) -> dict[str, ResampledStatistic]:
    """Returns the distance of p_G, and of p_S if the objective learns one, from the oracle: p_G weighted by the true
    discriminator loss.

    At one masked position the oracle draws x' in proportion to p_G(x') L_D(x'), so

        KL(q || oracle) = E_q[log(q / p_G) - log L_D] + log E_{p_G}[L_D]

    in nats. One position per sequence is measured, chosen independently of the draws; the other masked positions hold
    tokens from the objective's own distribution. Expectations under p_G are means over quantiles of p_G. The
    expectation under a learned q is the drawn token's value, so only its mean over sequences means much.
    """
    model.eval()
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for batch in batches:
        *_, (name, output) = model.outputs(batch).items()
        detected = output.detected
        assert detected is not None  # of a `Detection`
        slot_B1 = batch.keep_uniforms_BK.masked_fill(~batch.masked_valid_BK, -1).argmax(1, keepdim=True)
        place_B1 = batch.masked_positions_BK.gather(1, slot_B1)
        prediction = model.predict(batch)
        losses = []
        for number in range(candidates):
            quantile_BK = torch.full_like(batch.uniforms_BK, (number + 0.5) / candidates)
            token_B1 = prediction.p.draw(quantile_BK)[0].gather(1, slot_B1)
            tokens_BK = detected.draw.tokens_BK.scatter(1, slot_B1, token_B1)
            losses.append(discriminator_loss(*model.discriminate(batch, tokens_BK)).gather(1, place_B1))
        loss_BC = torch.cat(losses, 1).double().clamp_(min=LEAST_LOSS)
        log_mean_B = loss_BC.mean(1).log()
        parts["p_G"].append((log_mean_B - loss_BC.log().mean(1)).cpu().numpy())
        if name != "p_G":
            drawn_B = detected.discriminator_loss_BL.gather(1, place_B1)[:, 0].double().clamp(min=LEAST_LOSS)
            log_ratio_B = detected.draw.log_ratio_BK.gather(1, slot_B1)[:, 0]
            parts[name].append((log_mean_B - drawn_B.log() - log_ratio_B).cpu().numpy())
    return {
        name: resample(np.stack((np.concatenate(part), np.ones(sum(map(len, part))))), mean)
        for name, part in parts.items()
    }
