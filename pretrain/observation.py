"""Running a trained model over held-out text, position by position: what it samples and what it says of samples.

Shape letters: B batch, L length, K masked positions a sequence, S sequences, N positions of all sequences.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.config import ObjectiveConfig
from pretrain.data import Batch
from pretrain.electra import Electra, ElectraOutput
from pretrain.masked_lm import MaskedLM
from pretrain.metrics import MetricSums, summary
from pretrain.sampling import draw, draw_from_generator

SAMPLERS = {"p_G": draw_from_generator, "p_S": draw}
"""Who draws replacements: the generator, or what the objective learned to sample from."""


class Judgement(NamedTuple):
    """What a discriminator says of one set of replacements; one value a visible position, [N] over all sequences."""

    d: np.ndarray
    """Its logit; above 0 it says "replaced"."""
    replaced: np.ndarray
    masked: np.ndarray
    """Whether the position was masked: the others can never be replaced."""
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
    largest_p_G: np.ndarray
    """Probability of the generator's most likely token."""
    largest_q: np.ndarray
    """The same of the distribution sampled from."""

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


def distributions(objective: ObjectiveConfig) -> list[str]:
    """What replacements can be drawn from; where nothing is learned, p_S is p_G and not listed."""
    return ["p_G", "p_S"] if objective.learns_to_sample else ["p_G"]


@torch.no_grad()
def observe(model: Electra, batches: Iterable[Batch], device: torch.device) -> Observed:
    """Runs the model in evaluation mode over the batches: the generator once, the discriminator once a distribution."""
    model.eval()
    names = distributions(model.objective)
    metrics, sequences = MetricSums(device), 0
    parts: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in names}
    tokens: dict[str, list[Tensor]] = {name: [] for name in names}
    for batch in batches:
        batch = batch.to(device)
        prediction, scores = model.generate(batch)
        for name in names:
            drawn = SAMPLERS[name](prediction, scores, batch.uniforms_BK, model.objective)
            output = model.judge(batch, prediction, drawn)
            if name == names[-1]:
                metrics.add(batch, output)
            seen = _judgement(batch, output.d_BL, output.replaced_BL, sequences)
            parts[name].append(tuple(part.cpu() for part in (*seen, *_observe_masked(batch, output))))
            tokens[name].append(drawn.tokens_BK.to("cpu", torch.int32))
        sequences += len(batch.input_ids_BL)
    return Observed(
        {name: _observations(parts[name]) for name in names},
        {name: torch.cat(tokens[name]) for name in names},
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
def masked_lm_metrics(model: MaskedLM, batches: Iterable[Batch], device: torch.device) -> dict[str, float]:
    """The metrics of a model that replaces nothing."""
    model.eval()
    metrics = MetricSums(device)
    for batch in batches:
        batch = batch.to(device)
        metrics.add(batch, model(batch))
    return summary(metrics.vector)


def _observations(parts: list[tuple[Tensor, ...]]) -> Observations:
    columns = _joined(parts)
    seen = len(Judgement._fields)
    return Observations(Judgement(*columns[:seen]), *columns[seen:])


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
    other_BK = output.replaced_BL.gather(1, batch.masked_positions_BK)
    if drawn.z_BK is None:
        estimate_X = output.d_BL.new_empty(0)
    else:
        estimate_X = F.softplus(torch.where(other_BK, drawn.z_BK, -drawn.z_BK))[valid_BK]
    return (
        estimate_X,
        output.discriminator_loss_BL.gather(1, batch.masked_positions_BK)[valid_BK],
        other_BK[valid_BK],
        drawn.log_ratio_BK.exp()[valid_BK],
        drawn.log_max_p_G_BK.exp()[valid_BK],
        drawn.log_max_q_BK.exp()[valid_BK],
    )
