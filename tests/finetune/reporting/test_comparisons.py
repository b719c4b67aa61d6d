"""finetune/reporting/comparisons.py: paired differences between models, over seeds and over examples.

Permutation test and bootstrap are compared with their definitions.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.stats import counts_RS
from finetune.glue.job import METRICS
from finetune.reporting.comparisons import bootstrap_interval, differences, permutation_p, resampled, summed
from finetune.reporting.paper_tables import GLUE_COLUMNS, SQUAD_COLUMNS
from finetune.reporting.results import make_rows
from finetune.running.records import EXAMPLES, RunRecord, write_files
from tests.finetune.conftest import make_record, squad_record

COLA = [column for column in GLUE_COLUMNS if column.task == "CoLA"]
OTHER = {"model": "other", "model_sha256": "c" * 64}
SQUAD = {"exact": [1.0, 0.0, 1.0, 1.0], "f1": [1.0, 0.5, 1.0, 1.0], "answerable": [True, True, False, True]}


def records(*pairs: tuple[float, float]) -> list[RunRecord]:
    """CoLA runs of two models, one pair per seed."""
    found = [make_record(score, seed=seed) for seed, (score, _) in enumerate(pairs, 1)]
    return found + [make_record(score, seed=seed, **OTHER) for seed, (_, score) in enumerate(pairs, 1)]


def test_the_difference_is_second_minus_first_over_common_seeds() -> None:
    (found,) = differences(make_rows([*records((0.5, 0.6), (0.4, 0.6)), make_record(0.9, seed=7)]), COLA, [])
    assert (found.first.name, found.second.name, found.seeds) == ("runs/small/export", "other", 2)
    assert (found.mean, found.p, found.interval) == (pytest.approx(15), 0.5, None)


def test_one_seed_gives_no_p_value_and_other_data_no_difference() -> None:
    (found,) = differences(make_rows(records((0.5, 0.6))), COLA, [])
    assert found.p is None
    runs = [make_record(0.5), make_record(0.6, data_sha256="d" * 64, **OTHER)]
    assert list(differences(make_rows(runs), COLA, [])) == []


def test_the_interval_is_computed_from_both_models_saved_answers_in_any_folder(tmp_path: Path) -> None:
    runs = records((0.5, 0.6), (0.4, 0.6))
    target = [0, 1] * 50
    for number, run in enumerate(runs):
        wrong = 30 if run.model == "other" else 45
        predicted = [1 - value if place < wrong else value for place, value in enumerate(target)]
        folder = tmp_path / str(number % 2) / "predictions" / run.run.folder_name()
        write_files(folder, {EXAMPLES: {"dev": {"predicted": predicted, "target": target}}})
    outputs = [tmp_path / "0", tmp_path / "1"]
    (found,) = differences(make_rows(runs), COLA, outputs)
    assert found.interval is not None
    assert 5 < found.interval[0] < 30 < found.interval[1] < 55  # Matthews .4 against .1
    (found,) = differences(make_rows(runs), COLA, outputs[:1])
    assert found.interval is None


def test_scores_at_the_best_threshold_have_no_interval(tmp_path: Path) -> None:
    runs = [squad_record(0.5), squad_record(0.6, **OTHER)]
    for run in runs:
        write_files(tmp_path / "predictions" / run.run.folder_name(), {EXAMPLES: {"dev": SQUAD}})
    found = {
        difference.column.metric: difference.interval
        for difference in differences(make_rows(runs), SQUAD_COLUMNS, [tmp_path])
    }
    assert {metric for metric, interval in found.items() if interval is None} == {"best_exact", "best_f1"}
    assert found["NoAns_f1"] == (0, 0)


@pytest.mark.parametrize(("content", "problem"), [("{", "cannot read"), ("[]", "holds list, expected an object")])
def test_a_damaged_file_of_examples_is_named_in_one_line(content: str, problem: str, tmp_path: Path) -> None:
    runs = [make_record(0.5), make_record(0.6, **OTHER)]
    for run in runs:
        write_files(tmp_path / "predictions" / run.run.folder_name(), {EXAMPLES: content})
    with pytest.raises(ConfigError, match=f"runs: .*{problem}.*copy the file again, or remove it"):
        list(differences(make_rows(runs), COLA, [tmp_path]))


def test_the_permutation_test_counts_sign_assignments() -> None:
    differences = [0.3, 0.1, -0.05, 0.2, 0.4]
    means = [abs(np.mean(np.multiply(signs, differences))) for signs in itertools.product((1, -1), repeat=5)]
    expected = np.mean([mean >= abs(np.mean(differences)) - 1e-12 for mean in means])
    assert permutation_p(differences) == expected
    assert permutation_p([0.1] * 5) == 2 / 32
    assert permutation_p([0.1, -0.1]) == 1


def test_many_seeds_are_sampled_and_never_give_zero() -> None:
    assert 0 < permutation_p([1.0] * 40) < 1e-3


@pytest.mark.parametrize(("metric", "classes"), [("accuracy", 3), ("matthews", 3), ("matthews", 2), ("f1", 2)])
def test_resampled_classification_scores_are_the_metric_of_the_repeated_examples(metric: str, classes: int) -> None:
    random = np.random.default_rng(2)
    target = random.integers(classes, size=60)
    predicted = np.where(random.random(60) < 0.6, target, random.integers(classes, size=60)).astype(float)
    check(metric, target, predicted)


def test_resampled_correlations_are_those_of_the_repeated_examples() -> None:
    random = np.random.default_rng(3)
    target = random.integers(6, size=60) / 5  # with ties
    predicted = (target + random.normal(size=60)).round(1)
    check("pearson", target, predicted)
    ranks = {"target": scipy.stats.rankdata(target), "predicted": scipy.stats.rankdata(predicted)}
    spearman = resampled({"target": target, "predicted": predicted}, "spearman")
    np.testing.assert_allclose(spearman, resampled(ranks, "pearson"))


def check(metric: str, target: np.ndarray, predicted: np.ndarray) -> None:
    found = resampled({"target": target, "predicted": predicted}, metric)
    for count_N, score in zip(counts_RS(60)[:20].astype(int), found[:20], strict=True):
        repeated = METRICS[metric](np.repeat(target, count_N), np.repeat(predicted, count_N))
        assert score == pytest.approx(repeated, abs=1e-9)


def test_a_constant_answer_scores_zero_in_resamples_too() -> None:
    for metric in ("matthews", "pearson", "spearman", "f1"):
        assert not resampled({"target": [0, 1, 1, 0], "predicted": [0] * 4}, metric).any()


def test_questions_are_averaged_over_those_with_and_without_answer() -> None:
    for metric, score in (("f1", 0.875), ("HasAns_exact", 2 / 3), ("HasAns_f1", 2.5 / 3), ("NoAns_f1", 1.0)):
        columns, statistic = summed(SQUAD, metric)
        assert statistic(np.sum(columns, axis=1)) == pytest.approx(score)


def test_the_interval_contains_the_difference_and_narrows_with_more_examples() -> None:
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
    # The width for the mean of three independent differences is known: 2 * 1.96 * deviation.
    assert widths[1] == pytest.approx(3.92 * np.sqrt((0.21 + 0.16) / 3 / 2_000), rel=0.15)


def test_two_runs_with_equal_answers_have_no_difference() -> None:
    run = {"target": [0, 1, 1, 0], "predicted": [0, 1, 0, 0]}
    assert bootstrap_interval([(run, run)], "matthews") == (0, 0)
