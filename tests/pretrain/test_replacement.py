"""Claims about p_S, the draw from it, and the replaced sequence."""

import math

import pytest
import torch
from scipy.stats import chisquare

from pretrain.replacement import hp_loss_log_weights, log_softplus, replace, sample

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


def test_log_softplus_is_finite_and_exact_from_minus_1e4_to_1e4() -> None:
    z = torch.tensor([-1e4, -100.0, -15.001, -14.999, -1.0, 0.0, 1.0, 30.0, 1e4])
    exact = [v if v < -30 else math.log(math.log1p(math.exp(v))) if v < 30 else math.log(v) for v in z.tolist()]
    assert log_softplus(z).tolist() == pytest.approx(exact, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_frequencies_follow_the_weights(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_weights = torch.tensor([-0.5, 1.0, -2.0, 0.3, -4.0, 0.0, -1.0])
    draws = sample(log_weights.expand(200_000, 7), torch.rand(200_000, generator=generator))
    counts = torch.bincount(draws, minlength=7).numpy()
    assert chisquare(counts, log_weights.double().softmax(-1).numpy() * 200_000).pvalue > 1e-4


def test_a_token_of_weight_zero_is_never_drawn_even_at_the_ends_of_the_cdf() -> None:
    log_weights = torch.tensor([-math.inf, 0.0, -math.inf, 0.3, -math.inf])
    extremes = torch.tensor([0.0, 2.0**-24, 0.5, 1 - 2.0**-24])
    random = torch.rand(50_000, generator=torch.Generator().manual_seed(0))
    uniforms = torch.cat((extremes, random))
    assert set(sample(log_weights.expand(len(uniforms), 5), uniforms).tolist()) == {1, 3}


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
