"""Replacement sampling as pure functions: the distribution p_S, the draw, and the replaced sequence.

Everything here runs in fp32 and carries no gradient: sampling is not differentiated (paper section 3.2).
Shape letters: X any leading dimensions, V vocabulary, B batch, L length, K masked positions a sequence.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

SOFTPLUS_IS_EXP_BELOW = -15.0  # there softplus(z) = log(1 + e^z) = e^z to fp32 precision, so its logarithm is z


def log_softplus(z: Tensor) -> Tensor:
    """log(log(1 + e^z)), finite wherever z is."""
    return torch.where(z < SOFTPLUS_IS_EXP_BELOW, z, F.softplus(z.clamp(min=SOFTPLUS_IS_EXP_BELOW)).log())


@torch.no_grad()
def hp_loss_log_weights(log_p_G_XV: Tensor, z_XV: Tensor, original_X: Tensor, temperature: float = 1.0) -> Tensor:
    """HP_Loss: log of p_G^(1/T) L_hat up to a constant, [X, V].

    L_hat = -log D_hat = softplus(-z) for the original token and -log(1 - D_hat) = softplus(z) for every other
    (paper, equations of section 3.3), with D_hat = sigmoid(z).
    """
    signed_z_XV = z_XV.scatter(-1, original_X[..., None], -z_XV.gather(-1, original_X[..., None]))
    return log_p_G_XV / temperature + log_softplus(signed_z_XV)


@torch.no_grad()
def sample(log_weights_XV: Tensor, uniform_X: Tensor) -> Tensor:
    """Draws one token a row in proportion to exp(log_weights) by inverse CDF; ids [X].

    `uniform_X` lies in [0, 1) with at most 24 bits, so the target stays below the total and a token of weight zero,
    whose step in the CDF is empty, is never drawn.
    """
    weights_XV = (log_weights_XV - log_weights_XV.amax(-1, keepdim=True)).exp()
    cdf_XV = weights_XV.cumsum(-1)
    target_X1 = uniform_X[..., None] * cdf_XV[..., -1:]
    return torch.searchsorted(cdf_XV, target_X1, right=True).squeeze(-1)


@torch.no_grad()
def replace(input_ids_BL: Tensor, positions_BK: Tensor, valid_BK: Tensor, tokens_BK: Tensor) -> Tensor:
    """`input_ids` with `tokens` at the valid masked positions, [B, L]; slots that are not valid change nothing."""
    current_BK = input_ids_BL.gather(1, positions_BK)
    change_BK = torch.where(valid_BK, tokens_BK - current_BK, 0)
    return input_ids_BL.scatter_add(1, positions_BK, change_BK)
