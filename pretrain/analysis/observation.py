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
    """The original tokens under the generator, or a masked language model; one value per masked position."""

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
    largest_q: np.ndarray
    """Probability of the most likely token of the distribution sampled from."""
    entropy_q: np.ndarray
    """Of that distribution, in nats."""

    @property
    def sequence(self) -> np.ndarray:
        """Number of the sequence of each masked position."""
        return self.judgement.sequence[self.judgement.masked]

    @property
    def sequences(self) -> int:
        return int(self.judgement.sequence[-1]) + 1


class Observed(NamedTuple):
    """All that one pass over the data tells of a model."""

    originals: OriginalTokens
    under: dict[str, Observations]
    """By the distribution the replacements were drawn from: p_G, and p_S where the objective learns one; none of a
    model that replaces nothing."""
    tokens: dict[str, Tensor]
    """The replacements themselves [S, K], int32 on the CPU, for other discriminators to judge."""
    metrics: dict[str, float]
    """What training reports, under what the objective samples from."""

    @property
    def learned(self) -> Observations:
        """Under what the objective samples from: p_S where it learns one."""
        return self.under.get("p_S", self.under["p_G"])


@torch.no_grad()
def observe(model: Objective, batches: Iterable[Batch], device: torch.device) -> Observed:
    """Runs the model in evaluation mode over the batches: the generator once, the discriminator once a distribution."""
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
        metrics.add(batch, output)  # of the last: what the objective samples from
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
def judge(model: Electra, batches: Iterable[Batch], tokens_SK: Tensor, device: torch.device) -> Judgement:
    """What the model's discriminator says where the masked positions of the batches hold `tokens`."""
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
    """The columns of `Judgement` of one batch."""
    visible_BL = batch.attention_mask_BL
    columns_BL = (d_BL.float(), replaced_BL, batch.masked_BL > 0, _rows(visible_BL, first_sequence))
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
        drawn.log_max_q_BK.exp()[valid_BK],
        drawn.entropy_q_BK[valid_BK],
    )


def _rows(like: Tensor, first_sequence: int) -> Tensor:
    """The number of its sequence at each place of a [B, any] tensor."""
    rows_B = torch.arange(first_sequence, first_sequence + len(like), device=like.device)
    return rows_B[:, None].expand_as(like)
