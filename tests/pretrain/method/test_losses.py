"""Claims about the paper's losses, against written-out float64 arithmetic."""

import math

import pytest
import torch

from pretrain.method.losses import (
    discriminator_loss,
    focal_loss,
)

PROBABILITIES = [1e-6, 0.05, 0.19999, 0.20001, 0.5, 0.9, 1 - 1e-6]


def log_p(values: list[float] = PROBABILITIES) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def test_gamma_zero_focal_is_cross_entropy() -> None:
    logits = torch.randn(5, 7, dtype=torch.float64)
    target = torch.tensor([0, 6, 3, 3, 1])
    ours = focal_loss(logits.log_softmax(-1).gather(1, target[:, None]).squeeze(1), 0.0)
    assert torch.allclose(ours, torch.nn.functional.cross_entropy(logits, target, reduction="none"), atol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 4.0])
def test_focal_loss_is_the_formula(gamma: float) -> None:
    expected = [-((1 - p) ** gamma) * math.log(p) for p in PROBABILITIES]
    assert focal_loss(log_p(), gamma).tolist() == pytest.approx(expected, rel=1e-9)


def test_piecewise_gamma_is_3_above_one_fifth_and_5_below() -> None:
    expected = [-((1 - p) ** (3 if p > 0.2 else 5)) * math.log(p) for p in PROBABILITIES]
    assert focal_loss(log_p(), "piecewise").tolist() == pytest.approx(expected, rel=1e-9)


def test_focal_gradient_flows_through_both_factors() -> None:
    x = torch.tensor([-0.7], dtype=torch.float64, requires_grad=True)
    focal_loss(x, 2.0).backward()
    p = math.exp(-0.7)
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(2 * (1 - p) * p * -0.7 - (1 - p) ** 2, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 1e-9, 0.5, 0.99, 1.0, 4.0, "piecewise"])
def test_focal_loss_and_gradient_stay_finite_if_the_generator_is_certain(gamma: float) -> None:
    x = torch.tensor([0.0, -1e-42, -1e-8, -90.0], requires_grad=True)
    focal_loss(x, gamma).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_discriminator_loss_is_minus_log_of_the_correct_answers_probability() -> None:
    d = torch.tensor([-2.0, 0.3, 4.0, -1.0], dtype=torch.float64)
    replaced = torch.tensor([False, True, True, False])
    probability_original = [1 / (1 + math.exp(value)) for value in d.tolist()]
    expected = [-math.log(1 - p if r else p) for p, r in zip(probability_original, replaced.tolist(), strict=True)]
    assert discriminator_loss(d, replaced).tolist() == pytest.approx(expected, rel=1e-9)
