"""L_G and L_D, one value per position, as pure functions in the precision of their inputs.

Sign convention (Hugging Face's): logit d > 0 means "replaced", so the paper's D = P(original) = sigmoid(-d).
Reduction to means over the whole optimizer step is the caller's.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Gamma = float | Literal["piecewise"]

PIECEWISE_THRESHOLD = 0.2  # paper, ablation of the focal loss: gamma = 3 where p > 0.2, 5 elsewhere
PIECEWISE_GAMMA = (3.0, 5.0)


def focal_loss(log_p_original: Tensor, gamma: Gamma) -> Tensor:
    """L_G = -(1 - p)^gamma log p of the original token; the gradient flows through both factors.

    `log_p_original` is log p_G(x), any shape; gamma = 0 is cross-entropy. Finite everywhere, and so is the gradient.
    """
    if gamma == 0:
        return -log_p_original
    error = -torch.expm1(log_p_original)  # 1 - p without cancellation near p = 1
    if gamma != "piecewise":
        if gamma < 1:  # the power's slope is infinite at 0, where the loss's is 0
            error = error.clamp(min=torch.finfo(error.dtype).tiny)
        return -(error**gamma) * log_p_original
    confident, unsure = PIECEWISE_GAMMA
    exponent = torch.where(log_p_original.exp() > PIECEWISE_THRESHOLD, confident, unsure)
    return -(error**exponent) * log_p_original


def discriminator_loss(d: Tensor, replaced: Tensor) -> Tensor:
    """L_D: binary cross entropy, -log D where the token is the original and -log(1 - D) where it was replaced."""
    return F.binary_cross_entropy_with_logits(d, replaced.to(d.dtype), reduction="none")
