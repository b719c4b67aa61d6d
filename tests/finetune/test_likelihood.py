"""Claims about the likelihood of tokens: it is exact where it can be, and finite."""

from typing import Any

import pytest
import torch

from finetune.likelihood import Draws, draws_of, log_likelihood, log_sum_of_others
from pretrain.huggingface.stored import Sampling
from tests.finetune.conftest import M, sampler

SWITCHES: list[dict[str, Any]] = [
    {"objective": "electra"},
    {"objective": "electra", "temperature": 2.0},
    {"objective": "hp_dist", "temperature": 1.3, "mixture": 0.2},
    {"objective": "hp_loss"},
    {"objective": "hp_loss", "temperature": 0.7},
    {"objective": "hp_loss", "forbid_original": True},
    {"objective": "electra", "forbid_original": True},
    {"objective": "electra", "temperature": 2.0, "importance_weighting": True},
    {"objective": "hp_loss", "importance_weighting": True},
]


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda one: " ".join(map(str, one.values())))
def test_an_optimal_discriminator_implies_the_true_probabilities(switches: dict[str, Any]) -> None:
    """Its logit is found by counting all originals and draws of a vocabulary of five. Where q depends on the original,
    the generator has to be optimal too.
    """
    V, random = 5, torch.Generator().manual_seed(0)
    sampling = Sampling(mask_share=M, **switches)
    log_p_V, log_p_G_V, z_V = (2 * torch.randn(V, generator=random, dtype=torch.float64) for _ in range(3))
    log_p_V, log_p_G_V = log_p_V.log_softmax(-1), log_p_G_V.log_softmax(-1)
    if sampling.objective == "hp_loss" or sampling.forbid_original:
        log_p_G_V = log_p_V
    shown_original_V = (1 - M) * log_p_V.exp()
    shown_replaced_V = torch.zeros(V, dtype=torch.float64)
    for original in range(V):
        q_V = sampler(log_p_G_V, z_V, sampling, original)
        weight_V = log_p_G_V.exp() / q_V if sampling.importance_weighting else torch.ones(V)
        shown_V = M * log_p_V[original].exp() * q_V * weight_V
        shown_original_V[original] += shown_V[original]
        shown_replaced_V += shown_V.where(torch.arange(V) != original, 0.0)
    d_V = torch.log(shown_replaced_V / shown_original_V)
    head_VV = None if sampling.objective == "electra" else z_V.expand(V, V)
    draws = draws_of(log_p_G_V.expand(V, V), torch.arange(V), sampling, head_VV)
    torch.testing.assert_close(log_likelihood(d_V, draws, M), log_p_V, rtol=0, atol=1e-12)
    torch.testing.assert_close(draws.log_p_G_X, log_p_G_V, rtol=0, atol=1e-12)


def test_a_discriminator_that_knows_nothing_leaves_the_generators_probability() -> None:
    """It says how often such a token is replaced if p_G is right."""
    log_p_G_X = torch.linspace(-30, -1e-6, 50, dtype=torch.float64)
    p_X = log_p_G_X.exp()
    d_X = torch.log(M * p_X * -torch.expm1(log_p_G_X)) - torch.log(p_X * (1 - M + M * p_X))
    found_X = log_likelihood(d_X, Draws(log_p_G_X, log_p_G_X, log_p_G_X), M)
    torch.testing.assert_close(found_X, log_p_G_X, rtol=1e-9, atol=1e-12)


def test_extreme_logits_and_certain_generators_give_finite_scores() -> None:
    scores_XV = torch.zeros(4, 6, dtype=torch.float64)
    scores_XV[:, 0] = 900.0
    for objective, forbid in (("electra", False), ("hp_dist", False), ("hp_loss", False), ("hp_loss", True)):
        sampling = Sampling(objective=objective, mask_share=M, forbid_original=forbid)
        draws = draws_of(scores_XV.log_softmax(-1), torch.tensor([0, 1, 0, 1]), sampling, scores_XV.flip(-1) / 9)
        found_X = log_likelihood(torch.tensor([-800.0, -800.0, 800.0, 800.0]).double(), draws, M)
        assert found_X.isfinite().all() and (found_X <= 0).all()
        assert found_X[0] > found_X[2] and found_X[1] > found_X[3]


def test_the_sum_of_the_others_is_exact_where_one_token_is_almost_certain() -> None:
    log_XV = torch.tensor([[-50.0, 0.0, -60.0], [-1.0, -1.0, -2.0]], dtype=torch.float64)
    expected_XV = torch.stack([log_XV[:, [v for v in range(3) if v != x]].logsumexp(-1) for x in range(3)], -1)
    torch.testing.assert_close(log_sum_of_others(log_XV), expected_XV, rtol=1e-14, atol=1e-21)
