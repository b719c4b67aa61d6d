"""Claims about p_S, the draw from it, and the replaced sequence."""

import math

import pytest
import scipy.stats
import torch
from scipy.stats import chisquare

from pretrain.data import Batch
from pretrain.replacement import (
    ENTROPY_ROWS,
    entropy,
    hp_loss_log_weights,
    importance_weights,
    keeps_token,
    log_softplus,
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


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_p_s_sums_to_one_and_is_proportional_to_p_g_times_the_estimated_loss(temperature: float) -> None:
    torch.manual_seed(0)
    logits, z = torch.randn(4, 7, dtype=torch.float64) * 3, torch.randn(4, 7, dtype=torch.float64) * 4
    original = torch.tensor([0, 3, 6, 2])
    p_S = hp_loss_log_weights(logits.log_softmax(-1), z, original, temperature).softmax(-1)
    assert p_S.sum(-1).tolist() == pytest.approx([1.0] * 4, abs=1e-12)
    for row in range(4):
        p_G, D_hat = logits[row].softmax(-1).tolist(), torch.sigmoid(z[row]).tolist()
        expected = brute_force_p_S(p_G, D_hat, int(original[row]), temperature)
        assert p_S[row].tolist() == pytest.approx(expected, rel=1e-9)


def test_a_constant_estimate_leaves_p_g_unchanged() -> None:
    log_p_G = torch.randn(3, 7).log_softmax(-1)
    p_S = hp_loss_log_weights(log_p_G, torch.zeros(3, 7), torch.tensor([1, 2, 3])).softmax(-1)
    assert torch.allclose(p_S, log_p_G.exp(), atol=1e-6)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_of_weights_that_are_not_finite_a_token_of_the_vocabulary_is_drawn_with_probability_nan(weight: float) -> None:
    log_weights = torch.zeros(2, 7)
    log_weights[1, 3] = weight
    drawn = sample(log_weights, torch.tensor([0.5, 0.5]))
    assert drawn.tokens_X.tolist() == [3, 6]
    assert drawn.log_probability_X[0].isfinite() and drawn.log_probability_X[1].isnan()


def test_log_softplus_is_finite_and_exact_from_minus_1e4_to_1e4() -> None:
    z = torch.tensor([-1e4, -100.0, -15.001, -14.999, -1.0, 0.0, 1.0, 30.0, 1e4])
    exact = [v if v < -30 else math.log(math.log1p(math.exp(v))) if v < 30 else math.log(v) for v in z.tolist()]
    assert log_softplus(z).tolist() == pytest.approx(exact, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_frequencies_follow_the_weights(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_weights = torch.tensor([-0.5, 1.0, -2.0, 0.3, -4.0, 0.0, -1.0])
    draws = sample(log_weights.expand(200_000, 7), torch.rand(200_000, generator=generator)).tokens_X
    counts = torch.bincount(draws, minlength=7).numpy()
    assert chisquare(counts, log_weights.double().softmax(-1).numpy() * 200_000).pvalue > 1e-4


def test_a_token_of_weight_zero_is_never_drawn_even_at_the_ends_of_the_cdf() -> None:
    log_weights = torch.tensor([-math.inf, 0.0, -math.inf, 0.3, -math.inf])
    extremes = torch.tensor([0.0, 2.0**-24, 0.5, 1 - 2.0**-24])
    random = torch.rand(50_000, generator=torch.Generator().manual_seed(0))
    uniforms = torch.cat((extremes, random))
    assert set(sample(log_weights.expand(len(uniforms), 5), uniforms).tokens_X.tolist()) == {1, 3}


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_probability_of_the_drawn_token_and_the_largest_are_the_softmax(temperature: float) -> None:
    torch.manual_seed(1)
    log_weights = tempered(torch.randn(50, 7, dtype=torch.float64) * 3, temperature)
    sampled = sample(log_weights, torch.rand(50))
    p = log_weights.softmax(-1)
    drawn = p.gather(-1, sampled.tokens_X[:, None]).squeeze(-1)
    assert sampled.log_probability_X.exp().tolist() == pytest.approx(drawn.tolist(), rel=1e-9)
    assert sampled.log_largest_X.exp().tolist() == pytest.approx(p.amax(-1).tolist(), rel=1e-9)


@pytest.mark.parametrize("rows", [1, ENTROPY_ROWS, 2 * ENTROPY_ROWS + 1])
def test_the_entropy_is_scipys_also_where_probabilities_are_zero(rows: int) -> None:
    log_weights = torch.randn(rows, 3, 11, generator=torch.Generator().manual_seed(rows), dtype=torch.float64) * 4
    log_weights[:, 0, :5] = -math.inf
    log_weights[:, 1, 1:] = -math.inf
    expected = scipy.stats.entropy(log_weights.exp().numpy(), axis=-1)
    assert entropy(log_weights).numpy() == pytest.approx(expected, abs=1e-12)
    assert not entropy(log_weights)[:, 1].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_forbidden_original_is_never_drawn_and_the_others_keep_their_proportions(seed: int) -> None:
    log_p = torch.tensor([0.02, 0.9, 0.05, 0.03]).log()
    forbidden = without_original(log_p.expand(100_000, 4), torch.full((100_000,), 1))
    draws = sample(forbidden, torch.rand(100_000, generator=torch.Generator().manual_seed(seed))).tokens_X
    counts = torch.bincount(draws, minlength=4).tolist()
    assert counts[1] == 0
    assert chisquare([counts[0], *counts[2:]], [20_000, 50_000, 30_000]).pvalue > 1e-4


def test_the_mixture_is_the_weighted_mean_of_both_distributions() -> None:
    torch.manual_seed(2)
    p_S, p_G = (torch.randn(3, 7, dtype=torch.float64).softmax(-1) for _ in range(2))
    mixed = mixture(p_S.log(), p_G.log(), 0.2).exp()
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
