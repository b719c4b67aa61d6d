"""Claims about the paper's objectives with each switch: x' is drawn from the written-out distributions, and the draw
contains the head's values for it.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import erf, softmax
from scipy.stats import chisquare, entropy
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.hardness_prediction import HPDist, hp_dist_sampler_loss, hp_loss_sampler_loss
from pretrain.method.sampling import Draw, Prediction, predict
from pretrain.model.distribution import Dense
from tests.pretrain.conftest import SMALL_MODEL, new_model

SEEDS = (0, 1, 2)
DRAWS, VOCABULARY, ORIGINAL = 20_000, 9, 4
RARE = 1e-3
"""Cells with a smaller expected share are merged before the chi-square test."""


def said(logits: Tensor) -> Prediction:
    """A generator's prediction with these scores at every position."""
    p = Dense.softmax(logits.expand(1, DRAWS, VOCABULARY))
    return predict(batch_of(0), HIDDEN, p, gamma=1.0)


def batch_of(seed: int) -> Batch:
    """One sequence of original tokens, all masked, with uniforms by the seed."""
    ids, yes = torch.full((1, DRAWS), ORIGINAL), torch.ones(1, DRAWS, dtype=torch.bool)
    uniforms = torch.rand(1, DRAWS, generator=torch.Generator().manual_seed(seed))
    places = torch.arange(DRAWS)[None]
    return Batch(ids, yes, torch.zeros_like(ids), places, yes, uniforms, uniforms, DRAWS, DRAWS)


def p_G_of(seed: int) -> Tensor:
    return prediction(seed).p.dense().weights_XV[0, 0]


def prediction(seed: int) -> Prediction:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    return said(logits)


def model_of(seed: int, setting: dict[str, Any]) -> Any:
    """A model whose sampling head is away from its initial weights, where p_S = p_G would hide mistakes."""
    torch.manual_seed(100 + seed)
    model = new_model(vocabulary=VOCABULARY, **setting).double()
    for name, parameter in model.named_parameters():
        if name.startswith(("sampler_scores", "sampler_transform.LayerNorm")):
            torch.nn.init.normal_(parameter, std=1.5)
    return model


HIDDEN = torch.randn(
    SMALL_MODEL.generator_hidden_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64
).expand(1, DRAWS, -1)
"""The same scores at every position."""


def scores_of(model: Any) -> Tensor:
    """The sampling head's scores of every token."""
    return model.score(HIDDEN[:, :1]).all()[0, 0].detach()


def estimated_loss(model: Electra) -> Tensor:
    """L_hat_D of every token, from the formula."""
    D_hat = torch.sigmoid(scores_of(model))
    return -torch.where(torch.arange(VOCABULARY) == ORIGINAL, D_hat, 1 - D_hat).log()


def expected(seed: int, model: Electra) -> Tensor:
    """The sampling distribution, from the formulas of the paper and of the switches."""
    p_G, switches = p_G_of(seed), model.objective
    weights = p_G ** (1 / switches.temperature)
    if switches.name.startswith("hp_loss"):
        weights = weights * estimated_loss(model) ** getattr(switches, "exponent", 1)
    elif isinstance(switches, HPDist.Config):
        weights = scores_of(model).softmax(-1) ** (1 / switches.temperature)
        weights = (1 - switches.mixture) * weights / weights.sum() + switches.mixture * p_G
    if switches.forbid_original:
        weights[ORIGINAL] = 0
    return weights / weights.sum()


def draws(seed: int, model: Electra, given: Prediction | None = None) -> Draw:
    return model.draw(batch_of(seed), given or prediction(seed))[0]


SETTINGS: list[dict[str, object]] = [
    {"name": "electra"},
    {"name": "electra", "temperature": 2.0, "forbid_original": True},
    {"name": "hp_loss"},
    {"name": "hp_loss", "temperature": 0.7, "forbid_original": True},
    {"name": "hp_loss_power", "exponent": -1.0},
    {"name": "hp_loss_power", "exponent": 0.5},
    {"name": "hp_loss_power", "exponent": 2.0, "temperature": 0.7, "forbid_original": True},
    {"name": "hp_dist"},
    {"name": "hp_dist", "mixture": 0.2},
    {"name": "hp_dist", "temperature": 1.5, "mixture": 0.2, "forbid_original": True},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: " ".join(map(str, setting.values())))
@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_frequencies_and_reported_probabilities_follow_the_distribution(
    seed: int, setting: dict[str, object]
) -> None:
    model = model_of(seed, setting)
    p, drawn = expected(seed, model), draws(seed, model)
    counts = torch.bincount(drawn.tokens_BK.flatten(), minlength=VOCABULARY)
    assert not counts[p == 0].any()
    often = p > RARE
    observed = torch.cat((counts[often], counts[~often].sum()[None])).double()
    wanted = torch.cat((p[often], p[~often].sum()[None])) * DRAWS
    keep = wanted > 0
    assert chisquare(observed[keep].numpy(), wanted[keep].numpy()).pvalue > 1e-4
    assert torch.allclose(drawn.log_q_BK.exp(), p[drawn.tokens_BK], rtol=1e-6)
    assert torch.allclose(drawn.log_max_q_BK.exp(), p.max(), rtol=1e-6)
    assert torch.equal(drawn.log_p_G_BK, p_G_of(seed).log()[drawn.tokens_BK])


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: " ".join(map(str, setting.values())))
def test_entropies_are_returned_on_request_and_change_nothing_else(setting: dict[str, object]) -> None:
    model = model_of(0, setting)
    silent = draws(0, model)
    assert silent.entropy_q_BK is None
    asked = prediction(0)._replace(entropy_BK=torch.full((1, DRAWS), 1.5))
    drawn = draws(0, model, asked)
    assert torch.equal(drawn.tokens_BK, silent.tokens_BK) and torch.equal(drawn.log_q_BK, silent.log_q_BK)
    assert drawn.entropy_q_BK is not None
    np.testing.assert_allclose(drawn.entropy_q_BK, entropy(expected(0, model).numpy()), rtol=1e-6)


def scores_by_hand(model: Any, transform: str, scores: str) -> np.ndarray:
    """e(x)·h + bias of every token, by NumPy in float64."""
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    dense = HIDDEN[0, 0].numpy() @ weights[f"{transform}.dense.weight"].T + weights[f"{transform}.dense.bias"]
    active = dense * (1 + erf(dense / math.sqrt(2))) / 2
    normal = (active - active.mean()) / np.sqrt(active.var() + 1e-12)
    projected = normal * weights[f"{transform}.LayerNorm.weight"] + weights[f"{transform}.LayerNorm.bias"]
    return weights["generator.embeddings.word_embeddings.weight"] @ projected + weights.get(f"{scores}.bias", 0.0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("start", ["proposal", "normal"])
@pytest.mark.parametrize("name", ["hp_loss", "hp_dist"])
def test_p_s_at_step_0_is_the_papers_formula_in_float64_and_p_g_from_the_proposal(
    name: str, start: str, bias: bool
) -> None:
    torch.manual_seed(0)
    model = new_model(name, vocabulary=VOCABULARY, sampling_start=start, sampling_bias=bias).double()
    if bias:  # as in a pair that `--init_from` names
        torch.nn.init.normal_(model.generator_lm_head.bias)
        model.start()
    p_G = softmax(scores_by_hand(model, "generator_predictions", "generator_lm_head"))
    z = scores_by_hand(model, "sampler_transform", "sampler_scores")
    D_hat = 1 / (1 + np.exp(-z))
    p_S = p_G * np.where(np.arange(VOCABULARY) == ORIGINAL, -np.log(D_hat), -np.log(1 - D_hat))
    p_S = p_S / p_S.sum() if name == "hp_loss" else softmax(z)
    drawn = draws(0, model, said(torch.from_numpy(p_G).log()))
    assert set(drawn.tokens_BK.flatten().tolist()) == set(range(VOCABULARY))
    np.testing.assert_allclose(drawn.log_q_BK.detach().exp(), p_S[drawn.tokens_BK], rtol=1e-12)
    assert np.allclose(p_S, p_G, rtol=1e-12) == (start == "proposal")


def test_a_mixture_bounds_the_ratio_by_its_inverse() -> None:
    settings: list[dict[str, object]] = [{"name": "hp_dist", "mixture": 0.1}, {"name": "hp_dist"}]
    bounded, free = (draws(1, model_of(1, setting)).log_ratio_BK.exp().max().item() for setting in settings)
    assert bounded <= 10 < free


@pytest.mark.parametrize("name", ["hp_loss", "hp_dist"])
def test_l_s_compares_the_heads_values_for_the_drawn_tokens_with_the_discriminators(name: str) -> None:
    model = model_of(0, {"name": name})
    drawn, sampler_loss = model.draw(batch_of(0), prediction(0))
    z, d = scores_of(model), torch.linspace(-3, 3, DRAWS, dtype=torch.float64)[None]
    loss_D = F.softplus(d)
    if name == "hp_loss":
        expected = hp_loss_sampler_loss(z[drawn.tokens_BK], d)
    else:
        expected = hp_dist_sampler_loss(z.log_softmax(-1)[drawn.tokens_BK], drawn.log_ratio_BK, loss_D)
    assert torch.allclose(sampler_loss(d, loss_D), expected)


@pytest.mark.parametrize("name", ["hp_loss", "hp_dist"])
def test_an_evaluation_also_draws_from_p_g_exactly_as_electra(name: str) -> None:
    drawn, sampler_loss = model_of(0, {"name": name}).draw_from_p_G(batch_of(0), prediction(0))
    assert torch.equal(drawn.tokens_BK, draws(0, model_of(0, {"name": "electra"})).tokens_BK)
    assert torch.allclose(drawn.log_ratio_BK, torch.zeros(1, DRAWS, dtype=torch.float64), atol=1e-6)
    assert not sampler_loss(drawn.log_q_BK, drawn.log_q_BK).any()


def test_only_hp_loss_estimates_the_discriminators_loss_on_its_draws() -> None:
    assert draws(0, model_of(0, {"name": "hp_dist"})).estimated_loss_BK is None
    model = model_of(0, {"name": "hp_loss"})
    drawn = draws(0, model)
    assert drawn.estimated_loss_BK is not None
    assert torch.allclose(drawn.estimated_loss_BK, estimated_loss(model)[drawn.tokens_BK])


def test_hp_loss_compares_estimate_and_discriminator_without_gradient_to_the_discriminator() -> None:
    z = torch.tensor([0.4], dtype=torch.float64, requires_grad=True)
    d = torch.tensor([1.5], dtype=torch.float64, requires_grad=True)
    loss = hp_loss_sampler_loss(z, d)
    estimate, actual = 1 / (1 + math.exp(-0.4)), 1 / (1 + math.exp(1.5))
    assert loss.item() == pytest.approx((estimate - actual) ** 2, rel=1e-9)
    gradient, none = torch.autograd.grad(loss.sum(), (z, d), allow_unused=True)
    assert gradient.item() == pytest.approx(2 * (estimate - actual) * estimate * (1 - estimate), rel=1e-9)
    assert none is None


def test_hp_dist_weights_log_p_s_by_a_detached_ratio_and_loss() -> None:
    log_p_S = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    log_p_G = torch.tensor([-2.0], dtype=torch.float64, requires_grad=True)
    loss_D = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    loss = hp_dist_sampler_loss(log_p_S, log_p_G - log_p_S, loss_D)
    assert loss.item() == pytest.approx(math.exp(-1.0) * 0.7 * 1.0, rel=1e-9)
    gradient, *none = torch.autograd.grad(loss.sum(), (log_p_S, log_p_G, loss_D), allow_unused=True)
    assert gradient.item() == pytest.approx(-math.exp(-1.0) * 0.7, rel=1e-9)
    assert all(part is None for part in none)
