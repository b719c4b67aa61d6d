"""The paper's proposition and its limits, and HP_Dist's optimum, by brute force over small vocabularies in float64.

At one masked position, q draws x', and the estimate of E_{p_G}[L_D] is p_G(x')/q(x') L_D(x').
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.hardness_prediction import hp_dist_sampler_loss
from pretrain.model.distribution import Dense, hp_loss_weights
from tests.pretrain.conftest import CLS, SEP, VOCABULARY

SEEDS = (0, 1, 2)
ORIGINAL = 3
GRID = 1024
"""Number of uniforms, enough to reach every token of a distribution."""


def distribution_and_loss(seed: int) -> tuple[Tensor, Tensor]:
    """Random p_G and L_D of nine tokens."""
    generator = torch.Generator().manual_seed(seed)
    p_G = (torch.randn(9, generator=generator, dtype=torch.float64) * 2).softmax(-1)
    return p_G, torch.rand(9, generator=generator, dtype=torch.float64) * 4 + 0.01


def p_S_of(p_G: Tensor, loss: Tensor) -> Tensor:
    """The sampling distribution of HP_Loss if its estimate is exactly `loss`."""
    z = torch.log(torch.expm1(loss))  # softplus(z) = loss; for the original token softplus(-z) = loss
    z[ORIGINAL] = -z[ORIGINAL]
    return normalized(hp_loss_weights(p_G, z, torch.tensor(ORIGINAL)))


def normalized(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def mean_and_variance(p_G: Tensor, loss: Tensor, q: Tensor) -> tuple[float, float]:
    estimate = p_G / q * loss
    mean = (q * estimate).sum()
    return mean.item(), (q * (estimate - mean) ** 2).sum().item()


@pytest.mark.parametrize("seed", SEEDS)
def test_at_the_papers_p_s_the_estimate_is_unbiased_and_has_no_variance(seed: int) -> None:
    p_G, loss = distribution_and_loss(seed)
    mean, variance = mean_and_variance(p_G, loss, p_S_of(p_G, loss))
    assert mean == pytest.approx((p_G * loss).sum().item(), rel=1e-12)
    assert variance < 1e-24


def test_p_g_too_has_no_variance_exactly_if_the_loss_is_constant() -> None:
    p_G, _ = distribution_and_loss(0)
    constant = torch.full_like(p_G, 0.7)
    assert mean_and_variance(p_G, constant, p_G)[1] < 1e-24
    assert torch.allclose(p_S_of(p_G, constant), p_G, rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_weights_the_expected_loss_is_e_l_squared_over_z_so_the_distribution_is_harder(seed: int) -> None:
    p_G, loss = distribution_and_loss(seed)
    Z = (p_G * loss).sum()
    expected = (p_S_of(p_G, loss) * loss).sum()
    assert expected.item() == pytest.approx(((p_G * loss**2).sum() / Z).item(), rel=1e-12)
    assert expected > Z


def sequences(masks: int, rows: int, uniforms_BK: Tensor) -> Batch:
    """A batch with the same sequence of six tokens in every row, with its first `masks` words masked."""
    ids = torch.tensor([CLS, 5, 6, 6, 5, SEP]).expand(rows, 6)
    return Batch(
        input_ids_BL=ids,
        attention_mask_BL=torch.ones_like(ids, dtype=torch.bool),
        token_type_ids_BL=torch.zeros_like(ids),
        masked_positions_BK=torch.arange(1, masks + 1).expand(rows, masks),
        masked_valid_BK=torch.ones(rows, masks, dtype=torch.bool),
        uniforms_BK=uniforms_BK,
        keep_uniforms_BK=torch.ones_like(uniforms_BK),
        masked_count=1.0,
        token_count=1.0,
    )


def every_draw(model: Electra, masks: int) -> Any:
    """A forward with one row per combination of tokens at the masked positions: every possible draw."""
    grid = ((torch.arange(GRID) + 0.5) / GRID)[:, None].expand(GRID, masks)
    tokens = model(sequences(masks, GRID, grid)).detected.draw.tokens_BK
    reaching = [[grid[tokens[:, k] == t, k][0] for t in range(VOCABULARY)] for k in range(masks)]
    return model(sequences(masks, VOCABULARY**masks, torch.cartesian_prod(*map(torch.stack, reaching)).view(-1, masks)))


@pytest.fixture(params=["hp_loss", "hp_dist"])
def model(request: pytest.FixtureRequest, make_electra: Callable[..., Electra]) -> Electra:
    """A model with importance weights in float64; its p_S differs from p_G and is flat enough for the grid."""
    model = make_electra(name=request.param, importance_weighting=True).double().eval()
    for name in ("sampler_transform.LayerNorm.weight", "sampler_scores.bias"):
        model.get_parameter(name).data.mul_(0.3)
    return model


def masked_losses(output: Any, masks: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L_D [rows, masks], weights p_G/q, and each row's probability under q and under p_G."""
    draw, loss = output.detected.draw, output.detected.discriminator_loss_BL[:, 1 : masks + 1]
    return loss, draw.log_ratio_BK.exp(), draw.log_q_BK.sum(-1).exp(), draw.log_p_G_BK.sum(-1).exp()


def test_the_models_weighted_loss_is_unbiased_with_one_mask(model: Electra) -> None:
    output = every_draw(model, 1)
    loss, weight, q, p_G = masked_losses(output, 1)
    assert q.sum().item() == pytest.approx(1, rel=1e-12)
    assert p_G.sum().item() == pytest.approx(1, rel=1e-12)
    expected = (p_G[:, None] * loss).sum().item()
    assert (q[:, None] * weight * loss).sum().item() == pytest.approx(expected, rel=1e-12)
    assert abs((q[:, None] * loss).sum().item() - expected) > 1e-3  # the bias without weights


def test_the_weights_apply_only_at_the_masked_positions(model: Electra) -> None:
    weighted = every_draw(model, 2)
    loss, weight, _, _ = masked_losses(weighted, 2)
    model.objective = model.objective.model_copy(update={"importance_weighting": False})
    plain = every_draw(model, 2)
    difference = model.objective.lambda2 * ((weight - 1) * loss).sum()
    assert (weighted.loss - plain.loss).item() == pytest.approx(difference.item(), rel=1e-9)


def test_with_two_masks_the_bias_comes_only_from_the_other_masks_distribution(model: Electra) -> None:
    """E[w1 L1] - E_{p_G}[L1] = sum p_G(x1) (q(x2) - p_G(x2)) L1(x1, x2): it vanishes if L1 does not depend on x2."""
    output = every_draw(model, 2)
    loss, weight, q, p_G = masked_losses(output, 2)
    log_q, log_p_G = output.detected.draw.log_q_BK, output.detected.draw.log_p_G_BK
    for own, other in ((0, 1), (1, 0)):
        bias = (q * weight[:, own] * loss[:, own]).sum() - (p_G * loss[:, own]).sum()
        shift = log_q[:, other].exp() - log_p_G[:, other].exp()
        formula = (log_p_G[:, own].exp() * shift * loss[:, own]).sum()
        assert bias.item() == pytest.approx(formula.item(), rel=1e-9)
        table = loss[:, own].view(VOCABULARY, VOCABULARY).movedim(other, -1)
        spread = (table.amax(-1) - table.amin(-1)).max()
        distance = shift.abs().sum() / (2 * VOCABULARY)  # total variation; each token is in VOCABULARY rows
        assert 0 < abs(bias) <= distance * spread


EXACT = 1e-14


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
    sampled: Any = Dense(log_p_S.detach().exp()).tempered(temperature)
    q = normalized(sampled.weights_XV)
    if share:
        q = (1 - share) * q + share * p_G
    L_S = hp_dist_sampler_loss(log_p_S, (p_G / q).log(), loss)
    (gradient,) = torch.autograd.grad((q * L_S).sum(), logits)
    return gradient.abs().max().item()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("proposal", [{}, {"share": 0.1}, {"temperature": 2.0}, {"share": 0.5, "temperature": 0.5}])
def test_the_expected_gradient_vanishes_exactly_at_the_papers_optimum_for_any_proposal(
    proposal: dict[str, float], seed: int
) -> None:
    p_G, loss = distribution_and_loss(seed)
    optimum = normalized(p_G * loss)
    assert expected_gradient(optimum, p_G, loss, **proposal) < EXACT
    for elsewhere in (p_G, torch.full_like(p_G, 1 / 9), (0.9 * optimum + 0.1 * p_G)):
        assert expected_gradient(elsewhere, p_G, loss, **proposal) > 1e-4
