"""Runs a trained model over held-out text and records, per position, its samples and the discriminator's answers.

Shape letters: B batch, L length, K masked positions per sequence, S sequences, N positions of all sequences.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import Detection
from pretrain.method.objective import ElectraOutput, Objective
from pretrain.training.metrics import MetricSums, summary


class Judgement(NamedTuple):
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
    """Observations under one sampling distribution: one row per masked position, in `judgement` per non-pad one."""

    judgement: Judgement
    estimated_loss: np.ndarray
    """L_hat of the sampled token, from the sampling head; empty if the objective has no such estimate."""
    actual_loss: np.ndarray
    """L_D at the same positions."""
    sampled_other: np.ndarray
    """True if the sampled token differs from the original."""
    ratio: np.ndarray
    """p_G of the sampled token over the probability it was sampled with."""
    largest_q: np.ndarray
    """Largest probability of the sampling distribution."""
    entropy_q: np.ndarray
    """Entropy of the sampling distribution, in nats."""

    @property
    def sequence(self) -> np.ndarray:
        """Index of the sequence of each masked position."""
        return self.judgement.sequence[self.judgement.masked]

    @property
    def sequences(self) -> int:
        return int(self.judgement.sequence[-1]) + 1


class Observed(NamedTuple):
    """Predictions and judgements of a model, recorded in one pass over the data."""

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
def observe(model: Objective, batches: Iterable[Batch], device: torch.device) -> Observed:
    """Runs the model in evaluation mode over the batches: once per distribution of x'."""
    model.eval()
    metrics, sequences = MetricSums(device), 0
    originals: list[tuple[Tensor, ...]] = []
    parts: dict[str, list[tuple[Tensor, ...]]] = defaultdict(list)
    tokens: dict[str, list[Tensor]] = defaultdict(list)
    for batch in batches:
        batch = batch.to(device)
        for name, output in model.outputs(batch).items():
            if isinstance(output, ElectraOutput):
                seen = _judgement(batch, output.d_BL, output.replaced_BL, sequences)
                parts[name].append(_on_host(*seen, *_observe_masked(batch, output)))
                tokens[name].append(output.draw.tokens_BK.to("cpu", torch.int32))
        metrics.add(batch, output)  # the last output, with the objective's own sampling distribution
        original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
        valid_BK = batch.masked_valid_BK
        columns_BK = (output.log_p_original_BK, output.top_BK == original_BK, _rows(valid_BK, sequences))
        originals.append(_on_host(*(column_BK[valid_BK] for column_BK in columns_BK)))
        sequences += len(batch.input_ids_BL)
    judged, columns = len(Judgement._fields), {name: _joined(parts[name]) for name in parts}
    return Observed(
        OriginalTokens(*_joined(originals)),
        {name: Observations(Judgement(*columns[name][:judged]), *columns[name][judged:]) for name in parts},
        {name: torch.cat(drawn) for name, drawn in tokens.items()},
        summary(metrics.vector),
    )


@torch.no_grad()
def judge(model: Detection, batches: Iterable[Batch], tokens_SK: Tensor, device: torch.device) -> Judgement:
    """Returns the discriminator's answers with `tokens` at the masked positions of the batches."""
    model.eval()
    parts, sequences = [], 0
    for batch in batches:
        batch = batch.to(device)
        tokens_BK = tokens_SK[sequences : sequences + len(batch.input_ids_BL)].to(device, torch.int64)
        parts.append(_on_host(*_judgement(batch, *model.discriminate(batch, tokens_BK), sequences)))
        sequences += len(batch.input_ids_BL)
    return Judgement(*_joined(parts))


def _on_host(*columns: Tensor) -> tuple[Tensor, ...]:
    return tuple(column.cpu() for column in columns)


def _joined(parts: list[tuple[Tensor, ...]]) -> list[np.ndarray]:
    return [torch.cat(column).numpy() for column in zip(*parts, strict=True)]


def _judgement(batch: Batch, d_BL: Tensor, replaced_BL: Tensor, first_sequence: int) -> tuple[Tensor, ...]:
    """Returns the columns of `Judgement` for one batch."""
    visible_BL = batch.attention_mask_BL
    columns_BL = (d_BL.float(), replaced_BL, batch.masked_BL > 0, _rows(visible_BL, first_sequence))
    return tuple(column_BL[visible_BL] for column_BL in columns_BL)


def _observe_masked(batch: Batch, output: ElectraOutput) -> tuple[Tensor, ...]:
    """Returns the columns of `Observations`, except `judgement`, for the masked positions of one batch."""
    valid_BK, drawn = batch.masked_valid_BK, output.draw
    assert drawn.entropy_q_BK is not None  # requested by `observe`
    other_BK = output.replaced_BL.gather(1, batch.masked_positions_BK)
    return (
        output.d_BL.new_empty(0) if drawn.estimated_loss_BK is None else drawn.estimated_loss_BK[valid_BK],
        output.discriminator_loss_BL.gather(1, batch.masked_positions_BK)[valid_BK],
        other_BK[valid_BK],
        drawn.log_ratio_BK.exp()[valid_BK],
        drawn.log_max_q_BK.exp()[valid_BK],
        drawn.entropy_q_BK[valid_BK],
    )


def _rows(like: Tensor, first_sequence: int) -> Tensor:
    """Returns the index of its sequence for each element of a [B, any] tensor."""
    rows_B = torch.arange(first_sequence, first_sequence + len(like), device=like.device)
    return rows_B[:, None].expand_as(like)
