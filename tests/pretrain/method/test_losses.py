"""Claims about the paper's losses, against written-out float64 arithmetic."""

import math
from typing import Any

import pytest
import torch

from pretrain.method.losses import (
    discriminator_loss,
    focal_loss,
)

PROBABILITIES = [1e-6, 0.05, 0.19999, 0.20001, 0.5, 0.9, 1 - 1e-6]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 4.0, "piecewise"])
def test_focal_loss_is_the_formula_and_piecewise_gamma_is_3_above_one_fifth_and_5_below(gamma: Any) -> None:
    exponents = [(3 if p > 0.2 else 5) if gamma == "piecewise" else gamma for p in PROBABILITIES]
    expected = [-((1 - p) ** exponent) * math.log(p) for p, exponent in zip(PROBABILITIES, exponents, strict=True)]
    log_p = torch.tensor(PROBABILITIES, dtype=torch.float64).log()
    assert focal_loss(log_p, gamma).tolist() == pytest.approx(expected, rel=1e-9)


def test_focal_gradient_flows_through_both_factors() -> None:
    x = torch.tensor([-0.7], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(focal_loss(x, 2.0), x)
    p = math.exp(-0.7)
    assert gradient.item() == pytest.approx(2 * (1 - p) * p * -0.7 - (1 - p) ** 2, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 1e-9, 0.5, 0.99, 1.0, 4.0, "piecewise"])
def test_focal_loss_and_gradient_stay_finite_if_the_generator_is_certain(gamma: float) -> None:
    x = torch.tensor([0.0, -1e-42, -1e-8, -90.0], requires_grad=True)
    losses = focal_loss(x, gamma)
    assert losses.isfinite().all() and torch.autograd.grad(losses.sum(), x)[0].isfinite().all()


def test_discriminator_loss_is_minus_log_of_the_correct_answers_probability() -> None:
    d = torch.tensor([-2.0, 0.3, 4.0, -1.0], dtype=torch.float64)
    replaced = torch.tensor([False, True, True, False])
    probability_original = [1 / (1 + math.exp(value)) for value in d.tolist()]
    expected = [-math.log(1 - p if r else p) for p, r in zip(probability_original, replaced.tolist(), strict=True)]
    assert discriminator_loss(d, replaced).tolist() == pytest.approx(expected, rel=1e-9)
