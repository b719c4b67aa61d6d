"""Running sums of what training and evaluation report, on the device and without synchronising until asked.

Shape letters: B batch, L length, K masked positions a sequence.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pretrain.data import Batch
from pretrain.electra import ElectraOutput

SUMS = (
    "masked",
    "tokens",
    "generator_loss",
    "sampler_loss",
    "mlm_loss",
    "mlm_correct",
    "replaced",
    "discriminator_loss",
    "detected_masked",
    "detected",
)


class MetricSums:
    """Sums over micro-batches, as one float64 vector that ranks can add up."""

    def __init__(self, device: torch.device) -> None:
        self.vector = torch.zeros(len(SUMS), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, batch: Batch, output: ElectraOutput) -> None:
        valid_BK, visible_BL = batch.masked_valid_BK, batch.attention_mask_BL
        original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
        right_BL = ((output.d_BL > 0) == output.replaced_BL) & visible_BL
        right_BK = right_BL.gather(1, batch.masked_positions_BK) & valid_BK
        parts = (
            valid_BK,
            visible_BL,
            output.generator_loss_BK * valid_BK,
            output.sampler_loss_BK * valid_BK,
            -output.log_p_original_BK * valid_BK,
            (output.top_BK == original_BK) & valid_BK,
            output.replaced_BL,
            output.discriminator_loss_BL * visible_BL,
            right_BK,
            right_BL,
        )
        self.vector += torch.stack([part.sum(dtype=torch.float64) for part in parts])

    def reset(self) -> None:
        self.vector.zero_()


def summary(vector: Tensor) -> dict[str, float]:
    """Means of the summed vector; losses in nats a position.

    `discriminator_entropy` is the entropy of the replaced share: the discriminator loss of knowing nothing else.
    """
    sums: Mapping[str, float] = dict(zip(SUMS, vector.tolist(), strict=True))
    masked, tokens = max(sums["masked"], 1.0), max(sums["tokens"], 1.0)
    replaced_share = sums["replaced"] / tokens
    return {
        "tokens": sums["tokens"],
        "generator_loss": sums["generator_loss"] / masked,
        "sampler_loss": sums["sampler_loss"] / masked,
        "discriminator_loss": sums["discriminator_loss"] / tokens,
        "discriminator_entropy": binary_entropy(replaced_share),
        "mlm_loss": sums["mlm_loss"] / masked,
        "mlm_accuracy": sums["mlm_correct"] / masked,
        "replaced_share": replaced_share,
        "accuracy_masked": sums["detected_masked"] / masked,
        "accuracy_all": sums["detected"] / tokens,
    }


def binary_entropy(share: float) -> float:
    """-p log p - (1 - p) log(1 - p), in nats."""
    return -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
