"""Running sums of the metrics of training and evaluation, kept on the device without synchronization until read.

Shape letters: B batch, L length, K masked positions per sequence.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from foundation.stats import binary_entropy
from pretrain.data.batches import Batch
from pretrain.method.objective import ElectraOutput, Output

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
)


class MetricSums:
    """Sums over micro-batches, in one float64 vector [len(SUMS)] that can be all-reduced."""

    def __init__(self, device: torch.device) -> None:
        self.vector = torch.zeros(len(SUMS), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, batch: Batch, output: Output) -> None:
        valid_BK = batch.masked_valid_BK
        original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
        parts = [
            valid_BK,
            batch.attention_mask_BL,
            output.generator_loss_BK * valid_BK,
            -output.log_p_original_BK * valid_BK,
            (output.top_BK == original_BK) & valid_BK,
        ]
        if isinstance(output, ElectraOutput):
            parts += _detection(batch, output)
        self.vector[: len(parts)] += torch.stack([part.sum(dtype=torch.float64) for part in parts])


def _detection(batch: Batch, output: ElectraOutput) -> list[Tensor]:
    """Returns the terms to sum for replacements and discriminator, in the order of `SUMS` from `judged` on."""
    valid_BK, visible_BL = batch.masked_valid_BK, batch.attention_mask_BL
    suspected_BL = (output.d_BL > 0) & visible_BL
    right_BL = (suspected_BL == output.replaced_BL) & visible_BL
    right_BK = right_BL.gather(1, batch.masked_positions_BK) & valid_BK
    return [
        visible_BL,
        output.sampler_loss_BK * valid_BK,
        output.replaced_BL,
        output.discriminator_loss_BL * visible_BL,
        right_BK,
        right_BL,
        suspected_BL,
        suspected_BL & output.replaced_BL,
    ]


def summary(vector: Tensor) -> dict[str, float]:
    """Returns means from the summed vector, losses in nats per position; without a discriminator, the generator's only.

    `replace_rate` is the replaced share of masked positions, `replaced_share` of all positions: the base rate of
    detection. `discriminator_entropy` is the entropy of `replaced_share`: the loss of always predicting the base rate.
    `precision` and `recall` are for the class "replaced", and 0 if their denominator is 0.
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
