"""Claims about observations of a model, against its own outputs and a plain loop over positions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pretrain.analysis.observation import judge, observe, oracle_distance
from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.hardness_prediction import HPLoss
from pretrain.method.losses import discriminator_loss
from tests.pretrain.conftest import VOCABULARY

CPU = torch.device("cpu")


def test_both_distributions_are_observed_with_one_forward_each(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="hp_loss").eval()
    passes = {"generator": 0, "discriminator": 0}
    for name in passes:
        getattr(model, name).register_forward_hook(lambda *_, name=name: passes.update({name: passes[name] + 1}))
    under = observe(model, [batch, batch], CPU).under
    assert passes == {"generator": 4, "discriminator": 4}
    own, plain = under["p_S"], under["p_G"]
    assert np.allclose(plain.ratio, 1, atol=1e-5) and not np.allclose(own.ratio, 1, atol=1e-2)
    assert not np.allclose(own.largest_q, plain.largest_q, atol=1e-2)
    assert own.sequence.tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4, 5] and own.sequences == 6


def test_an_objective_without_learned_sampling_is_observed_only_under_p_G(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="electra")
    observed = observe(model, [batch], CPU)
    assert observed.under.keys() == observed.tokens.keys() == oracle_distance(model, [batch]).keys() == {"p_G"}
    assert observed.learned is observed.under["p_G"]


def test_observations_are_the_models_own_numbers_at_each_masked_position(
    batch: Batch, make_electra: Callable[..., HPLoss]
) -> None:
    model = make_electra(name="hp_loss").eval()
    everything = observe(model, [batch, batch], CPU)
    observed = everything.under["p_S"]
    output = model(batch)
    prediction = model.predict(batch)
    z_BK = model.score(prediction.hidden_BKH).of(output.detected.draw.tokens_BK)
    assert len(observed.judgment.d) == 2 * 23 and len(observed.actual_loss) == 2 * 5
    assert observed.judgment.masked.sum() == 10 and everything.metrics["tokens"] == 46
    assert torch.equal(everything.tokens["p_S"][:3], output.detected.draw.tokens_BK.int())
    row = 0
    for b in range(3):
        for k in range(2):
            if not batch.masked_valid_BK[b, k]:
                continue
            position, estimate = batch.masked_positions_BK[b, k], torch.sigmoid(z_BK[b, k])
            other = bool(output.detected.replaced_BL[b, position])
            assert observed.sampled_other[row] == other
            p_V = prediction.p.dense().weights_XV[b, k]
            assert everything.under["p_G"].entropy_q[row] == pytest.approx(-(p_V * p_V.log()).sum().item(), rel=1e-4)
            expected = -torch.log(1 - estimate if other else estimate)
            assert observed.estimated_loss[row] == pytest.approx(expected.item(), rel=1e-4)
            actual = output.detected.discriminator_loss_BL[b, position].item()
            assert observed.actual_loss[row] == pytest.approx(actual, rel=1e-5)
            row += 1


def test_a_discriminator_judges_its_own_replacements_as_observed(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="hp_dist")
    observed = observe(model, [batch, batch], CPU)
    for name, seen in observed.under.items():
        again = judge(model, [batch, batch], observed.tokens[name], CPU)
        assert all(np.array_equal(a, b) for a, b in zip(again, seen.judgment, strict=True))


def test_another_discriminator_judges_the_same_replacements_differently(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    drawing, judging = make_electra(name="hp_loss"), make_electra(name="electra")
    torch.nn.init.normal_(judging.discriminator_predictions.get_parameter("dense.weight"))
    observed = observe(drawing, [batch], CPU)
    crossed = judge(judging, [batch], observed.tokens["p_S"], CPU)
    own = observed.under["p_S"].judgment
    assert np.array_equal(crossed.replaced, own.replaced)
    assert not np.allclose(crossed.d, own.d)


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
    detected = model.outputs(batch)[name].detected
    assert detected is not None
    chosen_BV = torch.nn.functional.one_hot(detected.draw.tokens_BK[:, 0], VOCABULARY).double()
    q_BV = chosen_BV.view(-1, GRID, VOCABULARY).mean(1).repeat_interleave(GRID, 0)
    return float((q_BV.xlogy(q_BV) - q_BV * oracle_BV.log()).sum(1).mean())


def test_the_distances_are_the_exact_divergences(make_electra: Callable[..., Electra], one_mask: Batch) -> None:
    model = make_electra(name="hp_loss")
    torch.nn.init.normal_(model.discriminator_predictions.get_parameter("dense_prediction.weight"), std=3.0)
    found = oracle_distance(model, [one_mask], candidates=GRID)
    assert found.keys() == {"p_G", "p_S"}
    expected = {name: exact(model, one_mask, name) for name in found}
    assert abs(expected["p_S"] - expected["p_G"]) > 0.05
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=0.02)
