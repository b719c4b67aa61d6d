"""Claims about the distance from the oracle: against exact sums over a vocabulary of seven tokens."""

from collections.abc import Callable

import pytest
import torch

from pretrain.analysis.observation import oracle_distance
from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.losses import discriminator_loss
from tests.pretrain.conftest import VOCABULARY

GRID = 100
"""Uniforms per sequence; a distribution over seven tokens is the share of them that draws each."""


@pytest.fixture
def one_mask(batch: Batch) -> Batch:
    """Each sequence once per uniform, with one masked position, so that no other draw matters."""
    rows = [part.repeat_interleave(GRID, 0) if isinstance(part, torch.Tensor) else part for part in batch]
    uniforms = ((torch.arange(GRID) + 0.5) / GRID).repeat(len(batch.input_ids_BL))[:, None].expand(-1, 2)
    alone = torch.tensor([[True, False]]).expand_as(uniforms)
    return Batch._make(rows)._replace(uniforms_BK=uniforms, masked_valid_BK=alone)


@torch.no_grad()
def exact(model: Electra, batch: Batch, name: str) -> float:
    """Returns KL(q || oracle) by sums over the vocabulary, averaged over the sequences."""
    prediction = model.eval().predict(batch)
    p_BV, place_B1 = prediction.p.dense().weights_XV[:, 0].double(), batch.masked_positions_BK[:, :1]
    tokens = [torch.full_like(batch.masked_positions_BK, token) for token in range(VOCABULARY)]
    losses = [discriminator_loss(*model.discriminate(batch, tokens_BK)).gather(1, place_B1) for tokens_BK in tokens]
    oracle_BV = p_BV * torch.cat(losses, 1).double()
    oracle_BV /= oracle_BV.sum(1, keepdim=True)
    drawn_B = model.outputs(batch)[name].detected.draw.tokens_BK[:, 0]
    chosen_BV = torch.nn.functional.one_hot(drawn_B, VOCABULARY).double()
    q_BV = chosen_BV.view(-1, GRID, VOCABULARY).mean(1).repeat_interleave(GRID, 0)
    return float((q_BV.xlogy(q_BV) - q_BV * oracle_BV.log()).sum(1).mean())


def test_the_distances_are_the_exact_divergences(make_electra: Callable[..., Electra], one_mask: Batch) -> None:
    model = make_electra(name="hp_loss")
    torch.nn.init.normal_(model.discriminator_predictions.dense_prediction.weight, std=3.0)
    found = oracle_distance(model, [one_mask], candidates=GRID)
    assert found.keys() == {"p_G", "p_S"}
    expected = {name: exact(model, one_mask, name) for name in found}
    assert abs(expected["p_S"] - expected["p_G"]) > 0.05
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=0.02)


def test_without_a_learned_distribution_there_is_that_of_p_G_only(
    make_electra: Callable[..., Electra], batch: Batch
) -> None:
    assert oracle_distance(make_electra(name="electra"), [batch]).keys() == {"p_G"}
