"""Claims about HP_Loss's exponent; test_hardness_prediction.py compares its draws with written-out distributions."""

from typing import Any

import numpy as np
import pytest
import torch

from pretrain.data.batches import Batch, make_batch
from pretrain.data.shards import Shards
from pretrain.method.sampling import Draw
from pretrain.model.distribution import hp_loss_weights
from tests.samplers.conftest import model_of

ORIGINAL = 2


@pytest.fixture(scope="module")
def batch(shards: Shards) -> Batch:
    return make_batch(shards, np.arange(64), np.zeros(64, dtype=np.int64), seed=0)


def draw(shards: Shards, batch: Batch, name: str, **switches: Any) -> Draw:
    """The draw of a model whose estimates differ between tokens."""
    model = model_of(shards, name, **switches)
    if name != "electra":
        torch.nn.init.normal_(model.sampler_transform.LayerNorm.weight)
    return model(batch).detected.draw


def test_at_0_the_tokens_are_bitwise_those_of_electra_and_at_1_those_of_hp_loss(shards: Shards, batch: Batch) -> None:
    valid = batch.masked_valid_BK
    powers = {b: draw(shards, batch, "hp_loss_power", exponent=b) for b in (0.0, 1.0)}
    plain = {0.0: draw(shards, batch, "electra"), 1.0: draw(shards, batch, "hp_loss")}
    for b, expected in plain.items():
        assert torch.equal(powers[b].tokens_BK, expected.tokens_BK)
        assert torch.equal(powers[b].log_q_BK[valid], expected.log_q_BK[valid])
    assert not torch.equal(powers[0.0].tokens_BK, powers[1.0].tokens_BK)


@pytest.mark.parametrize("seed", range(3))
def test_if_the_estimate_is_exact_the_variance_of_the_weighted_loss_is_0_at_exponent_1_and_larger_at_any_other(
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    p_G = torch.randn(5, generator=generator, dtype=torch.float64).softmax(-1)
    loss = torch.rand(5, generator=generator, dtype=torch.float64) * 4 + 0.01
    z = torch.log(torch.expm1(loss))  # softplus(z) = loss; for the original token softplus(-z) = loss
    z[ORIGINAL] = -z[ORIGINAL]

    def variance(exponent: float) -> float:
        q = hp_loss_weights(p_G, z.clone(), torch.tensor(ORIGINAL), exponent)
        q = q / q.sum()
        assert torch.allclose(q, p_G * loss**exponent / (p_G * loss**exponent).sum(), rtol=1e-12)
        estimate = p_G / q * loss
        return float((q * (estimate - (p_G * loss).sum()) ** 2).sum())

    found = {exponent: variance(exponent) for exponent in (-1.0, 0.0, 0.5, 1.0, 2.0)}
    assert found[1.0] < 1e-24
    assert min(found[0.5], found[2.0]) > 1e-3
    assert found[0.5] < found[0.0] < found[-1.0]


@pytest.mark.parametrize("exponent", [-5.0, 5.0])
def test_the_largest_exponents_give_normal_weights_at_extreme_estimates(exponent: float) -> None:
    z = torch.tensor([[200.0, -200.0, 0.0, -40.0], [-200.0, -200.0, -200.0, -200.0]])
    p_G = torch.full((2, 4), 2.0**-16)
    weights = hp_loss_weights(p_G, z, torch.tensor([1, 0]), exponent, least=1e-6)
    assert weights.isfinite().all() and (weights.amax(-1) >= torch.finfo(torch.float32).tiny).all()
