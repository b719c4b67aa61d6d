"""Claims about the analysis, against values computed by hand and known cases."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from pretrain.analysis.analysis import (
    analyze,
    as_json,
    certainty,
    detection,
    estimate_quality,
    generator,
    headline,
    weighted_loss,
)
from pretrain.analysis.observation import Judgment, Observations, OriginalTokens, Recording


def judgment(**changes: np.ndarray) -> Judgment:
    """Six positions, four of them masked, two replaced; the discriminator ranks them perfectly."""
    values = {
        "d": np.array([3.0, 2.0, -1.0, -2.0, -3.0, -4.0]),
        "replaced": np.array([True, True, False, False, False, False]),
        "masked": np.array([True, True, True, True, False, False]),
        "sequence": np.array([0, 0, 1, 1, 1, 1]),
    }
    return Judgment(**{**values, **changes})


def observations(**changes: object) -> Observations:
    """Observations at the four masked positions of `judgment`."""
    values = {
        "judgment": judgment(),
        "estimated_loss": np.array([0.1, 0.4, 0.2, 0.3]),
        "actual_loss": np.array([0.2, 0.8, 0.7, 0.9]),
        "sampled_other": np.array([True, True, False, False]),
        "ratio": np.array([0.5, 2.0, 1.0, 0.5]),
        "largest_q": np.array([0.65, 0.99, 0.35, 1.0 + 1e-7]),
        "entropy_q": np.array([1.0, 2.0, 3.0, 6.0]),
    }
    return Observations(**{**values, **changes})  # type: ignore[arg-type]


def observed(**under: Observations) -> Recording:
    return Recording(ORIGINALS, under, {}, {"mlm_accuracy": 0.2})


ORIGINALS = OriginalTokens(
    log_p_original=np.log([0.9, 0.5, 0.25, 0.05]),
    predicted=np.array([True, True, False, False]),
    sequence=np.array([0, 0, 1, 1]),
)


def test_the_generators_numbers_are_means_over_masked_positions() -> None:
    found = generator(ORIGINALS)
    assert found["mlm_accuracy"].value == 0.5
    assert as_json(found["mlm_accuracy"])[1:] == [0, 1]  # right in one sequence, wrong in the other
    assert found["mlm_loss"].value == pytest.approx(-np.log([0.9, 0.5, 0.25, 0.05]).mean())


def test_detection_accuracy_over_masked_and_all_positions_has_an_interval_around_it() -> None:
    found = detection(judgment(d=np.array([3.0, -2.0, -1.0, -2.0, -3.0, 4.0])))
    for name, expected in {"accuracy_masked": 3 / 4, "accuracy_all": 4 / 6, "replaced_share": 2 / 6}.items():
        value, low, high = as_json(found[name])
        assert value == pytest.approx(expected), name
        assert low <= value <= high and low < high


def test_detection_compares_the_loss_with_the_entropy_of_the_replaced_share() -> None:
    found = detection(judgment())
    loss = np.mean(np.log1p(np.exp([-3, -2, -1, -2, -3, -4])))  # of two replaced and four original tokens
    entropy = -(1 / 3 * np.log(1 / 3) + 2 / 3 * np.log(2 / 3))
    expected = {"discriminator_loss": loss, "discriminator_entropy": entropy, "loss_over_entropy": loss / entropy}
    assert {name: found[name].value for name in expected} == pytest.approx(expected)


def test_detection_has_the_auc_of_all_and_of_masked_positions() -> None:
    seen = judgment(d=np.array([3.0, -1.5, -1.0, -2.0, -3.0, 4.0]))
    assert detection(seen)["auc_all"].value == pytest.approx(roc_auc_score(seen.replaced, seen.d))
    assert detection(seen)["auc_masked"].value == pytest.approx(roc_auc_score(seen.replaced[:4], seen.d[:4]))
    nothing = detection(judgment(replaced=np.zeros(6, dtype=bool)))
    assert as_json(nothing["auc_all"]) is None and as_json(nothing["auc_masked"]) is None


def test_correlations_by_class_are_numpys_and_the_class_mean_predictor_depends_only_on_the_class() -> None:
    found = {name: part.value for name, part in estimate_quality(observations())["pearson"].items()}
    actual, estimated, means = [0.2, 0.8, 0.7, 0.9], [0.1, 0.4, 0.2, 0.3], [0.5, 0.5, 0.8, 0.8]
    whole, of_means = (np.corrcoef(predicted, actual)[0, 1] for predicted in (estimated, means))
    expected = {"replaced": 1.0, "original": 1.0, "all": whole, "class_means": of_means}
    assert found == pytest.approx(expected | {"all_minus_class_means": whole - of_means})


def test_an_objective_without_loss_estimate_has_no_correlation() -> None:
    seen = observations(estimated_loss=np.empty(0))
    assert estimate_quality(seen) == {}
    shown = headline(as_json(analyze(observed(p_G=seen))))
    assert shown["estimate_correlation"] == {"original": None, "replaced": None, "all": None}


def test_an_estimate_informative_within_classes_beats_the_class_means_and_a_constant_one_does_not() -> None:
    random = np.random.default_rng(0)
    other = random.random(4000) < 0.5
    loss = np.where(other, 1.0, 0.3) + random.normal(0, 0.5, 4000)
    masked, sequence = np.ones(4000, dtype=bool), np.arange(4000) // 8
    seen = judgment(d=loss, replaced=other, masked=masked, sequence=sequence)
    common = {"judgment": seen, "actual_loss": loss, "sampled_other": other}
    knowing = observations(estimated_loss=loss + random.normal(0, 0.3, 4000), **common)
    blind = observations(estimated_loss=np.where(other, 1.0, 0.3), **common)
    for seen_by, above in ((knowing, True), (blind, False)):
        _, low, _ = as_json(estimate_quality(seen_by)["pearson"]["all_minus_class_means"])
        assert (low > 0) == above


@pytest.mark.parametrize(
    ("largest", "expected", "interval"),
    [
        # of the largest probabilities, one is of each sequence, or both are of one
        ([0.65, 0.99, 0.35, 1.0 + 1e-7], [0, 0, 0, 0.25, 0, 0, 0.25, 0, 0, 0.5], [0.5, 0.5]),
        ([0.95, 0.91, 0.55, 0.05], [0.25, 0, 0, 0, 0, 0.25, 0, 0, 0, 0.5], [0.0, 1.0]),
    ],
)
def test_maximum_probabilities_are_counted_in_ten_bins_and_the_entropy_is_a_mean_with_intervals_over_sequences(
    largest: list[float], expected: list[float], interval: list[float]
) -> None:
    shares, entropy = certainty(observations(largest_q=np.array(largest)))
    assert [share.value for share in shares] == expected and as_json(shares[-1])[1:] == interval
    assert as_json(entropy) == [3.0, 1.5, 4.5]  # one sequence or the other only, at the ends


def test_the_loss_estimate_weights_every_sample_by_its_ratio() -> None:
    values = np.array([0.1, 1.6, 0.7, 0.45])
    found = {name: part.value for name, part in weighted_loss(observations()).items()}
    assert found == pytest.approx(
        {"mean": values.mean(), "variance": values.var(), "effective_share": 4.0**2 / (0.25 + 4 + 1 + 0.25) / 4}
    )


def test_a_better_distribution_has_lower_variance_by_more_than_the_interval() -> None:
    """Tokens with loss 0 or 1: drawing the second kind three times as often leaves a quarter of the variance."""
    random = np.random.default_rng(0)
    losses = {name: random.permutation(8000) < share * 8000 for name, share in {"p_G": 0.1, "p_S": 0.3}.items()}
    under = {
        name: observations(
            judgment=judgment(
                d=np.zeros(8000), replaced=loss, masked=np.ones(8000, dtype=bool), sequence=np.arange(8000) // 8
            ),
            actual_loss=loss.astype(float),
            ratio=np.ones(8000) if name == "p_G" else np.where(loss, 1 / 3, 0.9 / 0.7),
            estimated_loss=np.empty(0),
            sampled_other=loss,
            largest_q=np.full(8000, 0.9),
            entropy_q=np.full(8000, 2.0),
        )
        for name, loss in losses.items()
    }
    found = as_json(analyze(observed(**under)))
    mean, variance = (found["p_S_minus_p_G"]["loss_estimate"][name] for name in ("mean", "variance"))
    assert mean[0] == pytest.approx(0, abs=1e-9) and mean[1] < 0 < mean[2]
    assert variance[0] == pytest.approx((0.3 / 9 - 0.01) - 0.09) and variance[2] < 0
    assert found["loss_estimate"]["p_G"]["effective_share"] == pytest.approx([1, 1, 1])
    assert found["loss_estimate"]["p_S"]["effective_share"][2] < 1


def test_a_run_without_learned_sampling_has_no_p_S_to_compare() -> None:
    found = analyze(observed(p_G=observations()))
    assert found["detection"].keys() == {"p_G"} and "p_S_minus_p_G" not in found
