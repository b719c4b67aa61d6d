"""Claims about p_S, the draw from it, and the replaced sequence."""

import math

import pytest
import scipy.stats
import torch
from scipy.stats import chisquare

from pretrain.data.batches import Batch
from pretrain.method.replacement import (
    ENTROPY_ROWS,
    entropy,
    hp_loss_weights,
    importance_weights,
    keeps_token,
    mixture,
    replace,
    sample,
    tempered,
    without_original,
)

SEEDS = (0, 1, 2)


def brute_force_p_S(p_G: list[float], D_hat: list[float], original: int, temperature: float) -> list[float]:
    weights = [
        p ** (1 / temperature) * (-math.log(d) if token == original else -math.log(1 - d))
        for token, (p, d) in enumerate(zip(p_G, D_hat, strict=True))
    ]
    return [weight / sum(weights) for weight in weights]


def normalized(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_p_s_sums_to_one_and_is_proportional_to_p_g_times_the_estimated_loss(temperature: float) -> None:
    torch.manual_seed(0)
    logits, z = torch.randn(4, 7, dtype=torch.float64) * 3, torch.randn(4, 7, dtype=torch.float64) * 4
    original = torch.tensor([0, 3, 6, 2])
    p_S = normalized(hp_loss_weights(logits.softmax(-1), z.clone(), original, temperature))
    for row in range(4):
        p_G, D_hat = logits[row].softmax(-1).tolist(), torch.sigmoid(z[row]).tolist()
        expected = brute_force_p_S(p_G, D_hat, int(original[row]), temperature)
        assert p_S[row].tolist() == pytest.approx(expected, rel=1e-9)


def test_a_constant_estimate_leaves_p_g_unchanged() -> None:
    p_G = torch.randn(3, 7).softmax(-1)
    p_S = normalized(hp_loss_weights(p_G, torch.zeros(3, 7), torch.tensor([1, 2, 3])))
    assert torch.allclose(p_S, p_G, atol=1e-6)


@pytest.mark.parametrize("z", [-1e4, -60.0, -20.0, 0.0, 20.0, 1e4])
def test_an_estimate_of_any_size_leaves_weights_to_draw_by(z: float) -> None:
    """Of both signs: the original's loss is small where the others' is large; fp32 against float64."""
    p_G, original = torch.tensor([[0.98, 0.02, 0.0], [1 / 3, 1 / 3, 1 / 3]]), torch.tensor([0, 1])
    p_S = normalized(hp_loss_weights(p_G, torch.full((2, 3), z), original))
    wide = torch.full((2, 3), z, dtype=torch.float64)
    loss = torch.nn.functional.softplus(torch.where(torch.arange(3) == original[:, None], -wide, wide))
    expected = normalized(p_G.double() * loss.clamp(min=1e-30))
    assert p_S.double().numpy() == pytest.approx(expected.numpy(), rel=1e-6)
    assert sample(p_S, torch.tensor([0.5, 0.999])).log_probability_X.isfinite().all()


def test_a_mass_of_losses_too_small_for_fp32_is_drawn_from_as_by_p_g() -> None:
    p_G = torch.tensor([0.5, 0.3, 0.2])
    p_S = normalized(hp_loss_weights(p_G, torch.tensor([200.0, -200.0, -300.0]), torch.tensor(0)))
    assert torch.allclose(p_S, p_G)


@pytest.mark.parametrize("place", [3, 300])
@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_of_weights_that_are_not_finite_a_token_of_the_vocabulary_is_drawn_with_probability_nan(
    weight: float, place: int
) -> None:
    weights = torch.ones(2, 301)
    weights[1, place] = weight
    drawn = sample(weights, torch.tensor([0.5, 0.5]))
    assert drawn.tokens_X[0] == 150 and 0 <= drawn.tokens_X[1] < 301
    assert drawn.log_probability_X[0].isfinite() and drawn.log_probability_X[1].isnan()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.05])
def test_the_probability_of_the_drawn_token_and_the_largest_are_the_tempered_softmax(temperature: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(50, 7, dtype=torch.float64) * 3
    sampled = sample(tempered(logits.softmax(-1), temperature), torch.rand(50))
    p = (logits / temperature).softmax(-1)
    drawn = p.gather(-1, sampled.tokens_X[:, None]).squeeze(-1)
    assert sampled.log_probability_X.exp().tolist() == pytest.approx(drawn.tolist(), rel=1e-9)
    assert sampled.log_largest_X.exp().tolist() == pytest.approx(p.amax(-1).tolist(), rel=1e-9)


@pytest.mark.parametrize("rows", [1, ENTROPY_ROWS, 2 * ENTROPY_ROWS + 1])
def test_the_entropy_is_scipys_also_where_probabilities_are_zero(rows: int) -> None:
    weights = (torch.randn(rows, 3, 11, generator=torch.Generator().manual_seed(rows), dtype=torch.float64) * 4).exp()
    weights[:, 0, :5] = 0
    weights[:, 1, 1:] = 0
    expected = scipy.stats.entropy(weights.numpy(), axis=-1)
    assert entropy(weights).numpy() == pytest.approx(expected, abs=1e-12)
    assert not entropy(weights)[:, 1].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_forbidden_original_is_never_drawn_and_the_others_keep_their_proportions(seed: int) -> None:
    p = torch.tensor([0.02, 0.9, 0.05, 0.03])
    forbidden = without_original(p.expand(100_000, 4), torch.full((100_000,), 1))
    draws = sample(forbidden, torch.rand(100_000, generator=torch.Generator().manual_seed(seed))).tokens_X
    counts = torch.bincount(draws, minlength=4).tolist()
    assert counts[1] == 0
    assert chisquare([counts[0], *counts[2:]], [20_000, 50_000, 30_000]).pvalue > 1e-4


def test_beside_a_forbidden_original_that_is_all_there_is_the_others_are_equally_likely() -> None:
    certain = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(3, 4)
    drawn = sample(without_original(certain, torch.full((3,), 1)), torch.tensor([0.1, 0.5, 0.9]))
    assert drawn.tokens_X.tolist() == [0, 2, 3]
    assert drawn.log_probability_X.exp().tolist() == pytest.approx([1 / 3] * 3)


def test_the_mixture_is_the_weighted_mean_of_both_distributions() -> None:
    torch.manual_seed(2)
    p_S, p_G = (torch.randn(3, 7, dtype=torch.float64).softmax(-1) for _ in range(2))
    mixed = mixture(p_S, p_G, 0.2)
    assert torch.allclose(mixed, 0.8 * p_S + 0.2 * p_G, rtol=1e-12)
    assert (p_G / mixed).max() <= 5


@pytest.mark.parametrize("fraction", [0.0, 0.15, 0.5])
def test_every_share_of_the_uniforms_keeps_its_token_as_often(fraction: float) -> None:
    """In each hundredth of [0, 1), so that what is kept tells nothing about the token drawn there."""
    uniforms = torch.arange(2**24).float() * 2.0**-24
    kept = keeps_token(uniforms, fraction).float()
    assert kept.double().mean().item() == pytest.approx(fraction, abs=1e-6)
    shares = kept[: 2**24 // 100 * 100].view(100, -1).mean(-1)
    assert (shares - fraction).abs().max().item() < 1e-3


def test_importance_weights_are_the_ratio_at_masked_positions_and_one_elsewhere(batch: Batch) -> None:
    ratio = torch.tensor([[0.5, 2.0], [1.0, 4.0], [0.1, 99.0]])
    weights = importance_weights(ratio.log(), batch)
    expected = torch.ones(3, 10)
    for b, k in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)):  # the sixth slot is not valid
        expected[b, batch.masked_positions_BK[b, k]] = ratio[b, k]
    assert torch.allclose(weights, expected)


def test_replace_changes_the_valid_positions_alone() -> None:
    ids = torch.tensor([[2, 5, 6, 3], [2, 6, 3, 0]])
    replaced = replace(
        ids,
        torch.tensor([[1, 2], [1, 0]]),
        torch.tensor([[True, True], [True, False]]),
        torch.tensor([[6, 6], [5, 9]]),
    )
    assert replaced.tolist() == [[2, 6, 6, 3], [2, 5, 3, 0]]
    assert ids.tolist() == [[2, 5, 6, 3], [2, 6, 3, 0]]
