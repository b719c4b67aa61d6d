"""Claims about where replacements come from, for each objective and switch, against the distributions written out."""

from collections.abc import Callable

import pytest
import torch
from scipy.stats import chisquare, entropy
from torch import Tensor

from pretrain.method.masked_lm import Prediction
from pretrain.method.objectives import ObjectiveConfig
from pretrain.method.sampling import Draw, draw, draw_from_generator

SEEDS = (0, 1, 2)
DRAWS, VOCABULARY, ORIGINAL = 60_000, 9, 4
RARE = 5e-4
"""Cells of a lower expected share are merged before the chi-square test."""


def prediction(seed: int) -> Prediction:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    p = logits.softmax(-1).expand(1, DRAWS, VOCABULARY)
    return Prediction(p, p[..., ORIGINAL].log(), torch.full((1, DRAWS), ORIGINAL), p.argmax(-1))


def head(seed: int) -> Callable[[Tensor | None], Tensor]:
    """A sampling head whose logits are the same at every position."""
    z = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64) * 2
    return lambda ids: z.expand(1, DRAWS, VOCABULARY).clone() if ids is None else z[ids]


def expected(seed: int, objective: ObjectiveConfig) -> Tensor:
    """The sampling distribution, from the formulas of the paper and of the switches."""
    p_G, z = prediction(seed).p_BKV[0, 0], head(seed)(None)[0, 0]
    D = torch.sigmoid(z)
    if objective.name == "hp_loss":
        loss = -torch.log(1 - D)
        loss[ORIGINAL] = -torch.log(D[ORIGINAL])
        weights = p_G ** (1 / objective.temperature) * loss
    elif objective.name == "hp_dist":
        weights = z.softmax(-1) ** (1 / objective.temperature)
        weights = (1 - objective.mixture) * weights / weights.sum() + objective.mixture * p_G
    else:
        weights = p_G ** (1 / objective.temperature)
    if objective.forbid_original:
        weights[ORIGINAL] = 0
    return weights / weights.sum()


def draws(seed: int, objective: ObjectiveConfig) -> Draw:
    uniforms = torch.rand(1, DRAWS, generator=torch.Generator().manual_seed(seed))
    return draw(prediction(seed), head(seed) if objective.learns_to_sample else None, uniforms, objective)


SETTINGS: list[dict[str, object]] = [
    {"name": "electra"},
    {"name": "electra", "temperature": 2.0, "forbid_original": True},
    {"name": "hp_loss"},
    {"name": "hp_loss", "temperature": 0.7, "forbid_original": True},
    {"name": "hp_dist"},
    {"name": "hp_dist", "mixture": 0.2},
    {"name": "hp_dist", "temperature": 1.5, "mixture": 0.2, "forbid_original": True},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: " ".join(map(str, setting.values())))
@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_frequencies_and_reported_probabilities_are_those_of_the_distribution(
    seed: int, setting: dict[str, object]
) -> None:
    objective = ObjectiveConfig.from_values(setting)
    p, drawn = expected(seed, objective), draws(seed, objective)
    counts = torch.bincount(drawn.tokens_BK.flatten(), minlength=VOCABULARY)
    assert not counts[p == 0].any()
    often = p > RARE
    observed = torch.cat((counts[often], counts[~often].sum()[None])).double()
    wanted = torch.cat((p[often], p[~often].sum()[None])) * DRAWS
    keep = wanted > 0
    assert chisquare(observed[keep].numpy(), wanted[keep].numpy()).pvalue > 1e-4
    assert torch.allclose(drawn.log_q_BK.exp(), p[drawn.tokens_BK], rtol=1e-6)
    assert torch.allclose(drawn.log_max_q_BK.exp(), p.max(), rtol=1e-6)
    log_p_G = prediction(seed).p_BKV[0, 0].log()
    assert torch.equal(drawn.log_p_G_BK, log_p_G[drawn.tokens_BK])
    assert torch.equal(drawn.log_max_p_G_BK[0, 0], log_p_G.max())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: " ".join(map(str, setting.values())))
def test_entropies_come_along_where_they_are_asked_for_and_change_nothing(setting: dict[str, object]) -> None:
    objective = ObjectiveConfig.from_values(setting)
    silent = draws(0, objective)
    assert silent.entropy_p_G_BK is silent.entropy_q_BK is None
    asked = prediction(0)._replace(entropy_BK=torch.full((1, DRAWS), 1.5))
    scores = head(0) if objective.learns_to_sample else None
    uniforms = torch.rand(1, DRAWS, generator=torch.Generator().manual_seed(0))
    drawn = draw(asked, scores, uniforms, objective)
    assert torch.equal(drawn.tokens_BK, silent.tokens_BK) and torch.equal(drawn.log_q_BK, silent.log_q_BK)
    assert drawn.entropy_p_G_BK is asked.entropy_BK
    assert drawn.entropy_q_BK is not None
    assert drawn.entropy_q_BK.numpy() == pytest.approx(entropy(expected(0, objective).numpy()), rel=1e-6)


def test_a_mixture_bounds_the_ratio_by_its_inverse() -> None:
    objective = ObjectiveConfig(name="hp_dist", mixture=0.1)
    bounded, free = (draws(0, o).log_ratio_BK.exp().max().item() for o in (objective, ObjectiveConfig(name="hp_dist")))
    assert bounded <= 10 < free


@pytest.mark.parametrize("name", ["hp_loss", "hp_dist"])
def test_any_objective_can_be_asked_for_the_generators_own_samples(name: str) -> None:
    objective = ObjectiveConfig.from_values({"name": name})
    uniforms = torch.rand(1, DRAWS, generator=torch.Generator().manual_seed(0))
    drawn = draw_from_generator(prediction(0), head(0), uniforms, objective)
    assert torch.equal(drawn.tokens_BK, draws(0, ObjectiveConfig(name="electra")).tokens_BK)
    assert torch.allclose(drawn.log_ratio_BK, torch.zeros(1, DRAWS, dtype=torch.float64), atol=1e-6)
    assert (drawn.z_BK is not None) == (name == "hp_loss")
