"""The losses L_G and L_D as pure functions, one value per position, in the precision of their inputs.

Sign convention (Hugging Face's): logit d > 0 means "replaced", so the paper's D = P(original) = sigmoid(-d).
The caller averages over the whole optimizer step.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Gamma = float | Literal["piecewise"]


def focal_loss(log_p_original: Tensor, gamma: Gamma) -> Tensor:
    """Returns L_G = -(1 - p)^gamma log p of the original token; the gradient flows through both factors.

    `log_p_original` is log p_G(x), of any shape; gamma = 0 is cross-entropy. Loss and gradient are always finite.
    """
    if gamma == 0:
        return -log_p_original
    error = -torch.expm1(log_p_original)  # 1 - p without cancellation near p = 1
    if gamma != "piecewise":
        if gamma < 1:  # at error 0 the power has an infinite slope, though the loss has slope 0
            error = error.clamp(min=torch.finfo(error.dtype).tiny)
        return -(error**gamma) * log_p_original
    exponent = torch.where(log_p_original.exp() > 0.2, 3.0, 5.0)  # paper, ablation of the focal loss
    return -(error**exponent) * log_p_original


def discriminator_loss(d: Tensor, replaced: Tensor) -> Tensor:
    """Returns L_D, the binary cross-entropy: -log D for an original token and -log(1 - D) for a replaced one."""
    return F.binary_cross_entropy_with_logits(d, replaced.to(d.dtype), reduction="none")
