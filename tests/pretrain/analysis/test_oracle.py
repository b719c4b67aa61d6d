"""Claims about the distance from the oracle: against exact sums over a vocabulary of seven tokens."""

from collections.abc import Callable

import pytest
import torch

from pretrain.analysis.oracle import oracle_distance
from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.losses import discriminator_loss
from tests.pretrain.conftest import VOCABULARY

CPU = torch.device("cpu")


@pytest.fixture
def one_mask(batch: Batch) -> Batch:
    """The batch with one masked position per sequence, so that no other draw matters."""
    return batch._replace(masked_valid_BK=torch.tensor([[True, False]] * 3))


@torch.no_grad()
def exact(model: Electra, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns p_G, q and the true loss of every token at the masked position, [B, V]."""
    hidden, prediction = model.eval().generate(batch)
    losses, chances = [], []
    place = batch.masked_positions_BK[:, :1]
    for token in range(VOCABULARY):
        tokens = torch.full_like(batch.masked_positions_BK, token)
        losses.append(discriminator_loss(*model.discriminate(batch, tokens)).gather(1, place))
    grid = (torch.arange(4000) + 0.5) / 4000
    for uniform in grid:
        drawn = model.draw(hidden, prediction, torch.full_like(batch.uniforms_BK, uniform.item()))
        chances.append(torch.nn.functional.one_hot(drawn.tokens_BK[:, 0], VOCABULARY))
    return prediction.p_BKV[:, 0].double(), torch.stack(chances).double().mean(0), torch.cat(losses, 1).double()


def test_the_distance_of_p_G_is_the_exact_divergence(make_electra: Callable[..., Electra], one_mask: Batch) -> None:
    model = make_electra(name="electra")
    torch.nn.init.normal_(model.discriminator_predictions.dense_prediction.weight, std=3.0)
    p, _, loss = exact(model, one_mask)
    oracle = p * loss / (p * loss).sum(1, keepdim=True)
    expected = (p * (p / oracle).log()).sum(1).mean()
    found = oracle_distance(model, [one_mask], CPU, candidates=4000)
    assert found.keys() == {"p_G"}
    assert expected > 0.01
    assert found["p_G"].value == pytest.approx(expected.item(), rel=0.02)


def test_the_distance_of_p_S_is_the_exact_divergence_on_average(
    make_electra: Callable[..., Electra], one_mask: Batch
) -> None:
    model = make_electra(name="hp_loss")
    torch.nn.init.normal_(model.discriminator_predictions.dense_prediction.weight, std=3.0)
    p, q, loss = exact(model, one_mask)
    oracle = p * loss / (p * loss).sum(1, keepdim=True)
    expected = torch.where(q > 0, q * (q / oracle).log(), 0.0).sum(1).mean()
    grid = (torch.arange(200) + 0.5) / 200
    batches = [one_mask._replace(uniforms_BK=torch.full_like(one_mask.uniforms_BK, u.item())) for u in grid]
    found = oracle_distance(model, batches, CPU, candidates=200)
    assert found["p_S"].value == pytest.approx(expected.item(), abs=0.02)
    assert found["p_S"].value != pytest.approx(found["p_G"].value, abs=0.02)
