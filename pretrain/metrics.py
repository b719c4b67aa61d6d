"""Running sums of what training and evaluation report, on the device and without synchronising until asked.

Shape letters: B batch, L length, K masked positions a sequence.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pretrain.data import Batch
from pretrain.electra import ElectraOutput
from pretrain.masked_lm import MaskedLMOutput

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
)


class MetricSums:
    """Sums over micro-batches, as one float64 vector that ranks can add up."""

    def __init__(self, device: torch.device) -> None:
        self.vector = torch.zeros(len(SUMS), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, batch: Batch, output: ElectraOutput | MaskedLMOutput) -> None:
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

    def reset(self) -> None:
        self.vector.zero_()


class RatioHistogram:
    """How p_G over the sampling distribution is spread over the drawn tokens, as counts that ranks can add up."""

    REACH = 12.0
    """Of the logarithm, in nats; what lies beyond counts at the end."""
    BINS = 480
    """20 a nat: a percentile is off by 2.5% at most."""
    PERCENTILES = (1, 50, 90, 99)

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(self.BINS, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, batch: Batch, output: ElectraOutput) -> None:
        log_ratio = output.draw.log_ratio_BK[batch.masked_valid_BK]
        bins = ((log_ratio + self.REACH) * (self.BINS / (2 * self.REACH))).long().clamp(0, self.BINS - 1)
        self.counts += torch.bincount(bins, minlength=self.BINS)

    @classmethod
    def percentiles(cls, counts: Tensor) -> dict[str, float]:
        """Ratio below which each percentage of the draws lies; nothing where none was counted."""
        total = counts.sum()
        if not total:
            return {}
        targets = torch.tensor(cls.PERCENTILES, dtype=counts.dtype, device=counts.device) / 100 * total
        bins = torch.searchsorted(counts.cumsum(0), targets)
        ratios = torch.exp((bins + 0.5) * (2 * cls.REACH / cls.BINS) - cls.REACH)
        return {f"ratio_p{name}": value for name, value in zip(cls.PERCENTILES, ratios.tolist(), strict=True)}


def _detection(batch: Batch, output: ElectraOutput) -> list[Tensor]:
    """What there is to sum of replacements and the discriminator's answers."""
    valid_BK, visible_BL = batch.masked_valid_BK, batch.attention_mask_BL
    right_BL = ((output.d_BL > 0) == output.replaced_BL) & visible_BL
    right_BK = right_BL.gather(1, batch.masked_positions_BK) & valid_BK
    return [
        visible_BL,
        output.sampler_loss_BK * valid_BK,
        output.replaced_BL,
        output.discriminator_loss_BL * visible_BL,
        right_BK,
        right_BL,
    ]


def summary(vector: Tensor) -> dict[str, float]:
    """Means of the summed vector; losses in nats a position. Without a discriminator, those of the generator alone.

    `discriminator_entropy` is the entropy of the replaced share: the discriminator loss of knowing nothing else.
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
        "discriminator_entropy": binary_entropy(replaced_share),
        "replaced_share": replaced_share,
        "accuracy_masked": sums["detected_masked"] / masked,
        "accuracy_all": sums["detected"] / tokens,
    }


def binary_entropy(share: float) -> float:
    """-p log p - (1 - p) log(1 - p), in nats."""
    return -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
