"""finetune/reporting/significance.py: permutation and bootstrap, against their definitions."""

import itertools

import numpy as np
import pytest
import scipy.stats

from finetune.glue.metrics import METRICS
from finetune.reporting.significance import bootstrap_interval, has_examples, permutation_p, scores


def test_the_permutation_test_counts_sign_assignments() -> None:
    differences = [0.3, 0.1, -0.05, 0.2, 0.4]
    means = [abs(np.mean(np.multiply(signs, differences))) for signs in itertools.product((1, -1), repeat=5)]
    expected = np.mean([mean >= abs(np.mean(differences)) - 1e-12 for mean in means])
    assert permutation_p(differences) == expected
    assert permutation_p([0.1] * 5) == 2 / 32
    assert permutation_p([0.1, -0.1]) == 1


def test_the_permutation_test_agrees_with_scipys() -> None:
    random = np.random.default_rng(1)
    one, other = random.normal(size=9), random.normal(0.5, size=9)
    reference = scipy.stats.permutation_test(
        (one, other), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=np.inf
    )
    assert permutation_p(list(one - other)) == pytest.approx(reference.pvalue, abs=1e-12)


def test_many_seeds_are_sampled_and_never_give_zero() -> None:
    assert 0 < permutation_p([1.0] * 40) < 1e-3


@pytest.mark.parametrize(("metric", "classes"), [("accuracy", 3), ("matthews", 3), ("matthews", 2), ("f1", 2)])
def test_resampled_scores_of_classes_are_the_metric_of_the_repeated_examples(metric: str, classes: int) -> None:
    random = np.random.default_rng(2)
    target = random.integers(classes, size=60)
    predicted = np.where(random.random(60) < 0.6, target, random.integers(classes, size=60)).astype(float)
    check(metric, target, predicted)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_resampled_correlations_are_those_of_the_repeated_examples(metric: str) -> None:
    random = np.random.default_rng(3)
    target = random.integers(6, size=60) / 5  # ties
    check(metric, target, (target + random.normal(size=60)).round(1))


def check(metric: str, target: np.ndarray, predicted: np.ndarray) -> None:
    random = np.random.default_rng(4)
    count_RN = random.multinomial(60, np.full(60, 1 / 60), size=20).astype(float)
    found = scores({"target": target, "predicted": predicted}, metric, count_RN)
    for count_N, score in zip(count_RN.astype(int), found, strict=True):
        repeated = METRICS[metric](np.repeat(target, count_N), np.repeat(predicted, count_N))
        assert score == pytest.approx(repeated, abs=1e-9)


def test_a_constant_answer_scores_nothing_as_the_metrics_say() -> None:
    once_RN = np.ones((1, 4))
    for metric in ("matthews", "pearson", "spearman", "f1"):
        assert scores({"target": [0, 1, 1, 0], "predicted": [0] * 4}, metric, once_RN) == [0]


SQUAD = {"exact": [1.0, 0.0, 1.0, 1.0], "f1": [1.0, 0.5, 1.0, 1.0], "answerable": [True, True, False, True]}


def test_questions_are_averaged_over_those_with_and_without_answer() -> None:
    once_RN, weighted_RN = np.ones((1, 4)), np.array([[1.0, 3.0, 1.0, 0.0]])
    assert scores(SQUAD, "f1", once_RN) == [0.875]
    assert scores(SQUAD, "HasAns_exact", once_RN) == pytest.approx([2 / 3])
    assert scores(SQUAD, "HasAns_f1", weighted_RN) == pytest.approx([2.5 / 4])
    assert scores(SQUAD, "NoAns_f1", once_RN) == [1]
    assert has_examples(SQUAD, "NoAns_f1")
    assert not has_examples(SQUAD, "best_f1")


def test_the_interval_holds_the_difference_and_narrows_with_examples() -> None:
    random = np.random.default_rng(5)
    widths = []
    for size in (100, 2_000):
        target = random.integers(2, size=size)
        runs = []
        for right in (0.7, 0.8):
            wrong = random.random((3, size)) > right
            runs.append([{"target": target, "predicted": np.where(w, 1 - target, target)} for w in wrong])
        low, high = bootstrap_interval(list(zip(*runs, strict=True)), "accuracy")
        difference = np.mean(
            [np.mean(b["predicted"] == target) - np.mean(a["predicted"] == target) for a, b in zip(*runs, strict=True)]
        )
        assert low < difference < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 3
    # The width of the mean of three independent differences is known: 2 * 1.96 * deviation.
    assert widths[1] == pytest.approx(3.92 * np.sqrt((0.21 + 0.16) / 3 / 2_000), rel=0.15)


def test_two_runs_that_answer_alike_differ_by_nothing() -> None:
    run = {"target": [0, 1, 1, 0], "predicted": [0, 1, 0, 0]}
    assert bootstrap_interval([(run, run)], "matthews") == (0, 0)
