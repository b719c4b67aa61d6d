"""Claims about the paper's losses, against float64 arithmetic written out."""

import math

import pytest
import torch

from pretrain.method.losses import (
    discriminator_loss,
    focal_loss,
    hp_dist_sampler_loss,
    hp_loss_sampler_loss,
    log_probability,
)

PROBABILITIES = [1e-6, 0.05, 0.19999, 0.20001, 0.5, 0.9, 1 - 1e-6]


def log_p(values: list[float] = PROBABILITIES) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def test_the_log_probability_and_its_gradient_are_autograds() -> None:
    torch.manual_seed(0)
    logits = (torch.randn(4, 3, 11, dtype=torch.float64) * 5).requires_grad_()
    ids, above = torch.randint(11, (4, 3)), torch.randn(4, 3, dtype=torch.float64)
    ours = log_probability(logits, logits.detach().softmax(-1), logits.argmax(-1), ids)
    theirs = logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    assert torch.allclose(ours, theirs, rtol=1e-14)
    gradients = [torch.autograd.grad(value, logits, above)[0] for value in (ours, theirs)]
    assert torch.allclose(*gradients, rtol=1e-12, atol=1e-15)


def test_the_log_probability_is_exact_where_the_probability_is_a_rounding_of_zero_or_one() -> None:
    logits = torch.tensor([300.0, 0.0, 299.5])
    p, top = logits.softmax(-1), torch.tensor(0)
    found = [log_probability(logits, p, top, torch.tensor(token)).item() for token in range(3)]
    assert p[1] == 0
    assert found == pytest.approx(logits.double().log_softmax(-1).tolist(), rel=1e-6)


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
def test_focal_loss_and_gradient_stay_finite_where_the_generator_is_sure(gamma: float) -> None:
    x = torch.tensor([0.0, -1e-42, -1e-8, -90.0], requires_grad=True)
    focal_loss(x, gamma).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_discriminator_loss_is_minus_log_of_the_right_answers_probability() -> None:
    d = torch.tensor([-2.0, 0.3, 4.0, -1.0], dtype=torch.float64)
    replaced = torch.tensor([False, True, True, False])
    probability_original = [1 / (1 + math.exp(value)) for value in d.tolist()]
    expected = [-math.log(1 - p if r else p) for p, r in zip(probability_original, replaced.tolist(), strict=True)]
    assert discriminator_loss(d, replaced).tolist() == pytest.approx(expected, rel=1e-9)


def test_hp_loss_compares_estimate_and_discriminator_and_spares_the_discriminator() -> None:
    z = torch.tensor([0.4], dtype=torch.float64, requires_grad=True)
    d = torch.tensor([1.5], dtype=torch.float64, requires_grad=True)
    loss = hp_loss_sampler_loss(z, d)
    estimate, actual = 1 / (1 + math.exp(-0.4)), 1 / (1 + math.exp(1.5))
    assert loss.item() == pytest.approx((estimate - actual) ** 2, rel=1e-9)
    loss.sum().backward()
    assert z.grad is not None
    assert z.grad.item() == pytest.approx(2 * (estimate - actual) * estimate * (1 - estimate), rel=1e-9)
    assert d.grad is None


def test_hp_dist_weighs_log_p_s_by_a_detached_ratio_and_loss() -> None:
    log_p_S = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    log_p_G = torch.tensor([-2.0], dtype=torch.float64, requires_grad=True)
    loss_D = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    loss = hp_dist_sampler_loss(log_p_S, log_p_G - log_p_S, loss_D)
    assert loss.item() == pytest.approx(math.exp(-1.0) * 0.7 * 1.0, rel=1e-9)
    loss.sum().backward()
    assert log_p_S.grad is not None
    assert log_p_S.grad.item() == pytest.approx(-math.exp(-1.0) * 0.7, rel=1e-9)
    assert log_p_G.grad is None
    assert loss_D.grad is None


def test_a_ratio_above_the_clip_weighs_as_the_clip() -> None:
    log_p_S, loss_D = torch.tensor([-3.0, -1.0]), torch.tensor([0.5, 0.5])
    loss = hp_dist_sampler_loss(log_p_S, torch.tensor([5.0, 0.1]), loss_D, ratio_clip=4.0)
    assert loss.tolist() == pytest.approx([4.0 * 0.5 * 3.0, math.exp(0.1) * 0.5 * 1.0])
