"""Claims about the analysis, against plain walks over the positions and against known cases."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pretrain.analysis import (
    Observations,
    detection,
    detection_auc,
    estimate_correlation,
    estimate_quality,
    loss_estimate,
    max_probability_shares,
    observe,
)
from pretrain.data import Batch
from pretrain.electra import Electra


def observations(**changes: object) -> Observations:
    """Six positions, four of them masked, two replaced; the discriminator orders them perfectly."""
    values = {
        "d": np.array([3.0, 2.0, -1.0, -2.0, -3.0, -4.0]),
        "replaced": np.array([True, True, False, False, False, False]),
        "masked": np.array([True, True, True, True, False, False]),
        "sequence": np.array([0, 0, 1, 1, 1, 1]),
        "estimated_loss": np.array([0.1, 0.4, 0.2, 0.3]),
        "actual_loss": np.array([0.2, 0.8, 0.7, 0.9]),
        "sampled_other": np.array([True, True, False, False]),
        "ratio": np.array([0.5, 2.0, 1.0, 0.5]),
        "largest_p_G": np.array([0.95, 0.91, 0.55, 0.05]),
        "largest_q": np.array([0.65, 0.99, 0.35, 1.0 + 1e-7]),
    }
    return Observations(**{**values, **changes})  # type: ignore[arg-type]


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    assert detection_auc(observations()) == {"auc_all": 1.0, "auc_masked": 1.0}
    d = np.array([3.0, -1.5, -1.0, -2.0, -3.0, 4.0])
    pairs = [a > b for a in d[:2] for b in d[2:]]
    assert detection_auc(observations(d=d))["auc_all"] == pytest.approx(np.mean(pairs))


def test_auc_is_none_where_nothing_was_replaced() -> None:
    assert detection_auc(observations(replaced=np.zeros(6, dtype=bool))) == {
        "auc_all": None,
        "auc_masked": None,
    }


def test_correlations_are_numpys_by_class() -> None:
    result = estimate_correlation(observations())
    assert result["replaced"] == pytest.approx(1.0)
    assert result["original"] == pytest.approx(1.0)
    assert result["all"] == pytest.approx(np.corrcoef([0.1, 0.4, 0.2, 0.3], [0.2, 0.8, 0.7, 0.9])[0, 1])


def test_an_objective_without_estimate_has_no_correlation() -> None:
    assert set(estimate_correlation(observations(estimated_loss=np.empty(0))).values()) == {None}


def test_the_class_mean_predictor_knows_the_class_and_nothing_else() -> None:
    quality = estimate_quality(observations())
    means = [0.5, 0.5, 0.8, 0.8]
    expected = np.corrcoef(means, [0.2, 0.8, 0.7, 0.9])[0, 1]
    assert quality["pearson"]["class_means"][0] == pytest.approx(expected)
    assert quality["pearson"]["all"][0] == estimate_correlation(observations())["all"]
    assert quality["spearman"]["all"][0] == pytest.approx(np.corrcoef([1, 4, 2, 3], [1, 3, 2, 4])[0, 1])


def test_an_estimate_that_follows_the_loss_within_classes_is_above_the_class_means_and_a_blind_one_is_not() -> None:
    random = np.random.default_rng(0)
    other = random.random(4000) < 0.5
    loss = np.where(other, 1.0, 0.3) + random.normal(0, 0.5, 4000)
    common = {"actual_loss": loss, "sampled_other": other, "masked": np.ones(4000, dtype=bool)}
    sequence = np.arange(4000) // 8
    knowing = observations(estimated_loss=loss + random.normal(0, 0.3, 4000), sequence=sequence, **common)
    blind = observations(estimated_loss=np.where(other, 1.0, 0.3), sequence=sequence, **common)
    for seen, above in ((knowing, True), (blind, False)):
        pearson = estimate_quality(seen)["pearson"]
        assert (pearson["all"][1] > pearson["class_means"][2]) == above


def test_shares_of_the_maximum_probability_are_counted_in_tenths() -> None:
    shares = max_probability_shares(observations())
    assert shares["p_G"] == [0.25, 0, 0, 0, 0, 0.25, 0, 0, 0, 0.5]
    assert shares["p_S"] == [0, 0, 0, 0.25, 0, 0, 0.25, 0, 0, 0.5]


def test_the_loss_estimate_weighs_every_sample_by_its_ratio() -> None:
    values = np.array([0.1, 1.6, 0.7, 0.45])
    assert loss_estimate(observations()) == pytest.approx(
        {"mean": values.mean(), "variance": values.var(), "effective_share": 4.0**2 / (0.25 + 4 + 1 + 0.25) / 4}
    )


def test_detection_counts_right_answers_with_an_interval_around_them() -> None:
    result = detection(observations(d=np.array([3.0, -2.0, -1.0, -2.0, -3.0, 4.0])))
    assert result["accuracy_masked"][0] == 0.75
    assert result["accuracy_all"][0] == pytest.approx(4 / 6)
    assert all(low <= value <= high for value, low, high in (result["accuracy_masked"], result["accuracy_all"]))


def test_replacements_from_the_generator_are_observed_on_request(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="hp_loss").eval()
    own, plain = (observe(model, [batch], torch.device("cpu"), choice)[0] for choice in (False, True))
    assert np.allclose(plain.ratio, 1, atol=1e-5) and not np.allclose(own.ratio, 1, atol=1e-2)
    assert np.array_equal(own.largest_p_G, plain.largest_p_G)
    assert np.allclose(plain.largest_p_G, plain.largest_q, rtol=1e-5)
    assert own.masked_sequence.tolist() == [0, 0, 1, 1, 2]


def test_observations_are_the_models_own_numbers_at_each_masked_position(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="hp_loss").eval()
    observed, metrics = observe(model, [batch, batch], torch.device("cpu"))
    output = model(batch)
    assert len(observed.d) == 2 * 23 and len(observed.actual_loss) == 2 * 5
    assert observed.masked.sum() == 10 and metrics["tokens"] == 46
    row = 0
    for b in range(3):
        for k in range(2):
            if not batch.masked_valid_BK[b, k]:
                continue
            position = batch.masked_positions_BK[b, k]
            assert output.draw.z_BK is not None
            estimate = torch.sigmoid(output.draw.z_BK[b, k])
            other = bool(output.replaced_BL[b, position])
            assert observed.sampled_other[row] == other
            expected = -torch.log(1 - estimate if other else estimate)
            assert observed.estimated_loss[row] == pytest.approx(expected.item(), rel=1e-4)
            assert observed.actual_loss[row] == pytest.approx(
                output.discriminator_loss_BL[b, position].item(), rel=1e-5
            )
            row += 1
