"""The losses of the paper, one value per position, as pure functions in the precision of their inputs.

Sign convention (Hugging Face's): logit d > 0 means "replaced", so the paper's D = P(original) = sigmoid(-d) and its
estimate D_hat = sigmoid(z). Reduction to means over the whole optimizer step is the caller's.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Gamma = float | Literal["piecewise"]

PIECEWISE_THRESHOLD = 0.2  # paper, ablation of the focal loss: gamma = 3 where p > 0.2, 5 elsewhere
PIECEWISE_GAMMA = (3.0, 5.0)


def log_probability(logits_XV: Tensor, p_XV: Tensor, top_X: Tensor, ids_X: Tensor) -> Tensor:
    """Of one token a row, [X]: the value and the gradient of `logits.log_softmax(-1).gather(-1, ids)`.

    `p` is the softmax, without gradient, and `top` the most likely token, whose probability is no rounding of zero. The
    backward makes one tensor [X, V] where autograd makes three.
    """
    return _LogProbability.apply(logits_XV, p_XV, top_X, ids_X)


class _LogProbability(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_XV: Tensor, p_XV: Tensor, top_X: Tensor, ids_X: Tensor) -> Tensor:
        ctx.save_for_backward(p_XV, ids_X)
        top_X1, ids_X1 = top_X[..., None], ids_X[..., None]
        below_top_X1 = logits_XV.gather(-1, ids_X1) - logits_XV.gather(-1, top_X1)
        return (below_top_X1 + p_XV.gather(-1, top_X1).log()).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_X: Tensor) -> tuple[Tensor, None, None, None]:
        """(1 where it is the token, else 0) - p, times what comes from above."""
        p_XV, ids_X = ctx.saved_tensors
        gradient_X1 = gradient_X[..., None]
        gradient_XV = (p_XV * -gradient_X1).scatter_add_(-1, ids_X[..., None], gradient_X1)
        return gradient_XV, None, None, None


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


def hp_loss_sampler_loss(z_sampled: Tensor, d: Tensor) -> Tensor:
    """HP_Loss: L_S = (D_hat(x') - D(x'))^2 at the sampled tokens, D detached."""
    return (torch.sigmoid(z_sampled) - torch.sigmoid(-d.detach())) ** 2


def hp_dist_sampler_loss(
    log_p_S: Tensor, log_ratio: Tensor, discriminator_loss: Tensor, ratio_clip: float | None = None
) -> Tensor:
    """HP_Dist: L_S = -(p_G / p_S) L_D log p_S at the sampled tokens; the ratio and L_D are detached.

    `log_ratio` is log of p_G over the distribution x' was drawn from: p_S in the paper. Its expected gradient is that
    of the cross-entropy from p_G L_D to p_S whatever that distribution, as long as `ratio_clip` cuts nothing.
    """
    ratio = torch.exp(log_ratio.detach())
    if ratio_clip is not None:
        ratio = ratio.clamp(max=ratio_clip)
    return -(ratio * discriminator_loss.detach()) * log_p_S
