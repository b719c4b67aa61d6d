"""Claims about observations of a model, against its own outputs and a plain loop over positions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pretrain.analysis.observation import judge, observe
from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.hardness_prediction import HPLoss

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
    observed = observe(make_electra(name="electra"), [batch], CPU)
    assert observed.under.keys() == observed.tokens.keys() == {"p_G"}
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
            position = batch.masked_positions_BK[b, k]
            estimate = torch.sigmoid(z_BK[b, k])
            other = bool(output.detected.replaced_BL[b, position])
            assert observed.sampled_other[row] == other
            p_V = prediction.p.dense().weights_XV[b, k]
            expected_entropy = -(p_V * p_V.log()).sum().item()
            assert everything.under["p_G"].entropy_q[row] == pytest.approx(expected_entropy, rel=1e-4)
            expected = -torch.log(1 - estimate if other else estimate)
            assert observed.estimated_loss[row] == pytest.approx(expected.item(), rel=1e-4)
            assert observed.actual_loss[row] == pytest.approx(
                output.detected.discriminator_loss_BL[b, position].item(), rel=1e-5
            )
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
    torch.nn.init.normal_(judging.discriminator_predictions.dense.weight)
    observed = observe(drawing, [batch], CPU)
    crossed = judge(judging, [batch], observed.tokens["p_S"], CPU)
    own = observed.under["p_S"].judgment
    assert np.array_equal(crossed.replaced, own.replaced)
    assert not np.allclose(crossed.d, own.d)
