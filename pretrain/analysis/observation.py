"""Running a trained model over held-out text, position by position: what it samples and what it says of samples.

Shape letters: B batch, L length, K masked positions a sequence, S sequences, N positions of all sequences.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra, ElectraOutput
from pretrain.method.objectives.mlm import MaskedLMOutput
from pretrain.method.objectives.objective import Objective
from pretrain.training.metrics import MetricSums, summary


class Judgement(NamedTuple):
    """What a discriminator says of one set of replacements; one value a visible position, [N] over all sequences."""

    d: np.ndarray
    """Its logit; above 0 it says "replaced"."""
    replaced: np.ndarray
    masked: np.ndarray
    """Whether the position was masked: the others can never be replaced."""
    sequence: np.ndarray
    """Number of the sequence."""


class OriginalTokens(NamedTuple):
    """The original tokens under a masked language model; one value per masked position."""

    log_p_original: np.ndarray
    predicted: np.ndarray
    """Whether the most likely token is the original."""
    sequence: np.ndarray
    """Number of the sequence."""


class Observations(NamedTuple):
    """One value a visible position (`judgement`) or a masked position (the rest), over all batches."""

    judgement: Judgement
    estimated_loss: np.ndarray
    """L_hat of the sampled token, by the sampling head; empty where the objective gives none."""
    actual_loss: np.ndarray
    """L_D at the same positions."""
    sampled_other: np.ndarray
    """Whether the sampled token differs from the original."""
    ratio: np.ndarray
    """p_G of the sampled token over the probability it was sampled with."""
    log_p_original: np.ndarray
    """log p_G of the original token."""
    predicted: np.ndarray
    """Whether the generator's most likely token is the original."""
    largest_p_G: np.ndarray
    """Probability of the generator's most likely token."""
    largest_q: np.ndarray
    """The same of the distribution sampled from."""
    entropy_q: np.ndarray
    """Of the distribution sampled from, in nats."""

    @property
    def sequence(self) -> np.ndarray:
        """Number of the sequence of each masked position."""
        return self.judgement.sequence[self.judgement.masked]

    @property
    def sequences(self) -> int:
        return int(self.judgement.sequence[-1]) + 1


class Observed(NamedTuple):
    """All that one pass over the data tells of a model."""

    under: dict[str, Observations]
    """By the distribution the replacements were drawn from: p_G, and p_S where the objective learns one."""
    tokens: dict[str, Tensor]
    """The replacements themselves [S, K], int32 on the CPU, for other discriminators to judge."""
    metrics: dict[str, float]
    """What training reports, under what the objective samples from."""

    @property
    def learned(self) -> Observations:
        """Under what the objective samples from: p_S where it learns one."""
        return self.under.get("p_S", self.under["p_G"])


@torch.no_grad()
def observe(model: Electra, batches: Iterable[Batch], device: torch.device) -> Observed:
    """Runs the model in evaluation mode over the batches: the generator once, the discriminator once a distribution."""
    model.eval()
    metrics, sequences = MetricSums(device), 0
    parts: dict[str, list[tuple[Tensor, ...]]] = defaultdict(list)
    tokens: dict[str, list[Tensor]] = defaultdict(list)
    for batch in batches:
        batch = batch.to(device)
        hidden_BKH, prediction = model.generate(batch, entropies=True)
        for name, drawn in model.draws(hidden_BKH, prediction, batch.uniforms_BK).items():
            output = model.judge(batch, prediction, drawn)
            seen = _judgement(batch, output.d_BL, output.replaced_BL, sequences)
            parts[name].append(tuple(part.cpu() for part in (*seen, *_observe_masked(batch, output))))
            tokens[name].append(drawn.tokens_BK.to("cpu", torch.int32))
        metrics.add(batch, output)  # of the last: what the objective samples from
        sequences += len(batch.input_ids_BL)
    judged, columns = len(Judgement._fields), {name: _joined(parts[name]) for name in parts}
    return Observed(
        {name: Observations(Judgement(*columns[name][:judged]), *columns[name][judged:]) for name in parts},
        {name: torch.cat(drawn) for name, drawn in tokens.items()},
        summary(metrics.vector),
    )


@torch.no_grad()
def judge(model: Electra, batches: Iterable[Batch], tokens_SK: Tensor, device: torch.device) -> Judgement:
    """What the model's discriminator says where the masked positions of the batches hold `tokens`."""
    model.eval()
    parts, sequences = [], 0
    for batch in batches:
        batch = batch.to(device)
        tokens_BK = tokens_SK[sequences : sequences + len(batch.input_ids_BL)].to(device, torch.int64)
        seen = _judgement(batch, *model.discriminate(batch, tokens_BK), sequences)
        parts.append(tuple(part.cpu() for part in seen))
        sequences += len(batch.input_ids_BL)
    return Judgement(*_joined(parts))


@torch.no_grad()
def observe_masked_lm(
    model: Objective, batches: Iterable[Batch], device: torch.device
) -> tuple[OriginalTokens, dict[str, float]]:
    """What a model that replaces nothing predicts, and the metrics training reports of it."""
    model.eval()
    metrics, parts, sequences = MetricSums(device), [], 0
    for batch in batches:
        batch = batch.to(device)
        output = model(batch)
        metrics.add(batch, output)
        valid_BK = batch.masked_valid_BK
        rows_B = torch.arange(sequences, sequences + len(valid_BK), device=device)
        columns = (*_predictions(batch, output), rows_B[:, None].expand_as(valid_BK)[valid_BK])
        parts.append(tuple(column.cpu() for column in columns))
        sequences += len(valid_BK)
    return OriginalTokens(*_joined(parts)), summary(metrics.vector)


def _joined(parts: list[tuple[Tensor, ...]]) -> list[np.ndarray]:
    return [torch.cat(column).numpy() for column in zip(*parts, strict=True)]


def _judgement(batch: Batch, d_BL: Tensor, replaced_BL: Tensor, first_sequence: int) -> tuple[Tensor, ...]:
    """The columns of `Judgement` of one batch."""
    visible_BL = batch.attention_mask_BL
    masked_BL = torch.zeros_like(visible_BL, dtype=torch.int64)
    masked_BL = masked_BL.scatter_add(1, batch.masked_positions_BK, batch.masked_valid_BK.long()) > 0
    rows_B = torch.arange(first_sequence, first_sequence + len(visible_BL), device=visible_BL.device)
    columns_BL = (d_BL.float(), replaced_BL, masked_BL, rows_B[:, None].expand_as(visible_BL))
    return tuple(column_BL[visible_BL] for column_BL in columns_BL)


def _observe_masked(batch: Batch, output: ElectraOutput) -> tuple[Tensor, ...]:
    """The other columns of `Observations`, in the order of the positions in the sequence, as the visible ones are."""
    valid_BK, drawn = batch.masked_valid_BK, output.draw
    assert drawn.entropy_q_BK is not None  # asked for by `observe`
    other_BK = output.replaced_BL.gather(1, batch.masked_positions_BK)
    return (
        output.d_BL.new_empty(0) if drawn.estimated_loss_BK is None else drawn.estimated_loss_BK[valid_BK],
        output.discriminator_loss_BL.gather(1, batch.masked_positions_BK)[valid_BK],
        other_BK[valid_BK],
        drawn.log_ratio_BK.exp()[valid_BK],
        *_predictions(batch, output),
        drawn.log_max_p_G_BK.exp()[valid_BK],
        drawn.log_max_q_BK.exp()[valid_BK],
        drawn.entropy_q_BK[valid_BK],
    )


def _predictions(batch: Batch, output: ElectraOutput | MaskedLMOutput) -> tuple[Tensor, Tensor]:
    """The originals' log p_G, and where the most likely token is the original."""
    original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    valid_BK = batch.masked_valid_BK
    return output.log_p_original_BK[valid_BK], (output.top_BK == original_BK)[valid_BK]
