"""Claims about the optimum of HP_Dist, where the expected gradient of L_S vanishes, by brute force in float64."""

import pytest
import torch
from torch import Tensor

from pretrain.method.hardness_prediction import hp_dist_sampler_loss
from pretrain.model.distribution import Dense

SEEDS = (0, 1, 2)
EXACT = 1e-14


def distribution_and_loss(seed: int) -> tuple[Tensor, Tensor]:
    """Random p_G and L_D of nine tokens."""
    generator = torch.Generator().manual_seed(seed)
    p_G = (torch.randn(9, generator=generator, dtype=torch.float64) * 2).softmax(-1)
    return p_G, torch.rand(9, generator=generator, dtype=torch.float64) * 4 + 0.01


def papers_p_S(p_G: Tensor, loss: Tensor) -> Tensor:
    return p_G * loss / (p_G * loss).sum()


def expected_gradient(
    p_S: Tensor,
    p_G: Tensor,
    loss: Tensor,
    *,
    share: float = 0.0,
    temperature: float = 1.0,
) -> float:
    """Largest component of the mean gradient over x' ~ q with respect to the logits of p_S."""
    logits = p_S.log().requires_grad_()
    log_p_S = logits.log_softmax(-1)
    weights = Dense(log_p_S.detach().exp()).tempered(temperature).weights_XV
    q = weights / weights.sum()
    if share:
        q = (1 - share) * q + share * p_G
    L_S = hp_dist_sampler_loss(log_p_S, (p_G / q).log(), loss)
    (q * L_S).sum().backward()
    assert logits.grad is not None
    return logits.grad.abs().max().item()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("proposal", [{}, {"share": 0.1}, {"temperature": 2.0}, {"share": 0.5, "temperature": 0.5}])
def test_the_expected_gradient_vanishes_exactly_at_the_papers_optimum_for_any_proposal(
    proposal: dict[str, float], seed: int
) -> None:
    p_G, loss = distribution_and_loss(seed)
    optimum = papers_p_S(p_G, loss)
    assert expected_gradient(optimum, p_G, loss, **proposal) < EXACT
    for elsewhere in (p_G, torch.full_like(p_G, 1 / 9), (0.9 * optimum + 0.1 * p_G)):
        assert expected_gradient(elsewhere, p_G, loss, **proposal) > 1e-4
