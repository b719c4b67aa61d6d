"""Claims about a study's effects: computed from examples, paired over seeds and examples, never without n."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bench.study.effects import CellMeasure, examples_resampled, multi_bootstrap, passes, verdict
from bench.study.results import EXAMPLES, Results
from electra_sampler.foundation.stats import ResampledStatistic, counts_RS, mean, resample
from tests.bench.study_cells import LENGTH, SEQUENCES, STUDY, add, add_cells, judgment, make_cell


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of one cell."""
    return add_cells(tmp_path_factory.mktemp("one"), ("base", 0))


@pytest.mark.parametrize("measure", STUDY.known_measures())
def test_a_measures_resamples_are_of_its_examples_and_center_on_its_value(measure: str, one: Results) -> None:
    found = examples_resampled(one, "base", 0, measure)
    assert found is not None and found.value == one.cells["base", 0].numbers[measure]
    spread = found.resampled_R.std()
    assert spread > 0
    assert found.resampled_R.mean() == pytest.approx(found.value, abs=0.25 * spread)


def test_the_auc_resampled_by_its_sums_is_that_of_resampled_sequences(one: Results) -> None:
    answers = judgment(0, 1.0)
    exact = [
        roc_auc_score(answers.replaced, answers.d, sample_weight=np.repeat(count_S, LENGTH))
        for count_S in counts_RS(SEQUENCES)[:200]
    ]
    resampled = examples_resampled(one, "base", 0, "frozen AUC")
    assert resampled is not None
    found = resampled.resampled_R[:200]
    assert np.corrcoef(exact, found)[0, 1] > 0.98
    assert found.std() == pytest.approx(np.std(exact), rel=0.1)


WHOLE = [(row.name, seed) for row in STUDY.rows for seed in STUDY.seeds]
MORE, LESS, _ = STUDY.predictions


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of every cell."""
    return add_cells(tmp_path_factory.mktemp("whole"), *WHOLE)


def test_an_effect_takes_only_the_seeds_that_both_rows_have(tmp_path: Path) -> None:
    keys = ("base", 0), ("base", 1), ("better row", 1), ("better row", 2)
    found = CellMeasure(add_cells(tmp_path, *keys), "BLiMP")
    effect = found.difference("better row", "base")
    assert effect.seeds == (1,)
    means = [make_cell(row, 1, skill)[0].numbers["BLiMP"] or 0.0 for row, skill in (("better row", 1.6), ("base", 1.0))]
    assert effect.interval is not None and effect.interval[0] == pytest.approx(means[0] - means[1])
    assert found.row("base").seeds == (0, 1)


def test_a_cell_without_a_measure_takes_no_part_in_it(tmp_path: Path) -> None:
    results = add_cells(tmp_path, *WHOLE)
    for key in WHOLE[1:3]:
        del results.cells[key].numbers["SQuAD f1"]
    measured = CellMeasure(results, "SQuAD f1")
    assert measured.row("base").seeds == measured.difference("better row", "base").seeds == (0, 3, 4)


def test_without_examples_the_kept_interval_stands_for_its_seeds_until_a_cell_of_it_is_replaced(tmp_path: Path) -> None:
    results = add_cells(tmp_path, *WHOLE[:4], *WHOLE[5:9])
    computed = CellMeasure(results, "BLiMP").difference("better row", "base")
    results.write()
    for path in (tmp_path / EXAMPLES).iterdir():
        path.unlink()
    kept = CellMeasure(add_cells(tmp_path, WHOLE[4], WHOLE[9]), "BLiMP").difference("better row", "base")
    assert kept == computed and kept.seeds == (0, 1, 2, 3)
    replaced = CellMeasure(add(tmp_path, *make_cell("base", 3)), "BLiMP").difference("better row", "base")
    assert replaced.interval is not None and np.isnan(replaced.interval[1:]).all() and len(replaced.seeds) == 5
    assert verdict(MORE, replaced) == "open: no examples"


def test_a_prediction_holds_or_is_refuted_only_by_an_interval_over_five_seeds_without_0(whole: Results) -> None:
    found = CellMeasure(whole, "BLiMP").difference("better row", "base")
    assert found.interval is not None and found.interval[1] > 0
    assert (verdict(MORE, found), verdict(LESS, found)) == ("holds", "refuted")
    assert verdict(MORE, found._replace(interval=[0.1, -0.1, 0.3])) == "open: the interval holds 0"


@pytest.mark.parametrize(
    ("expected", "interval", "said"),
    [
        ((0.0, 0.005), [0.0045, 0.001, 0.0049], "holds"),
        ((0.0, 0.005), [0.005, 0.001, 0.01], "open: the interval holds 0.005"),
        ((0.0, 0.005), [0.003, -0.001, 0.01], "open: the interval holds 0 and 0.005"),
        ((0.0, 0.005), [0.008, 0.006, 0.01], "refuted"),
        ((0.0, 0.005), [-0.008, -0.01, -0.006], "refuted"),
        ((None, -0.05), [-0.06, -0.07, -0.051], "holds"),
        ((None, -0.05), [-0.04, -0.045, -0.03], "refuted"),
    ],
)
def test_a_prediction_holds_only_within_its_bounds(
    expected: tuple[float | None, float | None], interval: list[float], said: str, whole: Results
) -> None:
    found = CellMeasure(whole, "BLiMP").difference("better row", "base")
    assert verdict(MORE.model_copy(update={"expected": expected}), found._replace(interval=interval)) == said


def test_a_number_without_examples_has_an_interval_over_seeds_only(tmp_path: Path) -> None:
    for seed in STUDY.seeds:
        results = add_cells(tmp_path, ("base", seed), entropy=float(seed))
    found = CellMeasure(results, "entropy").row("base").interval
    draws = np.random.default_rng(1).integers(5, size=(10_000, 5)).mean(axis=1)
    assert found is not None and found[0] == 2
    assert found[1:] == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.21)
    assert CellMeasure(results, "entropy").difference("base", "base").interval == [0, 0, 0]


def test_too_few_seeds_decide_nothing(tmp_path: Path) -> None:
    empty = Results(tmp_path, STUDY)
    assert verdict(MORE, CellMeasure(empty, "BLiMP").difference("better row", "base")) == "not run"
    found = CellMeasure(add_cells(tmp_path, *WHOLE[:4], *WHOLE[5:9]), "BLiMP").difference("better row", "base")
    assert verdict(MORE, found) == "open: 4 of at least 5 seeds"


def test_a_cell_that_fails_a_gate_decides_nothing(tmp_path: Path) -> None:
    assert not passes(make_cell("base", 0, **{"MLM loss": 5.6})[0], STUDY)
    assert not passes(make_cell("base", 0, **{"own loss over entropy": 0.96})[0], STUDY)
    assert passes(make_cell("base", 0)[0], STUDY)
    add_cells(tmp_path, *WHOLE)
    failing = add_cells(tmp_path, ("base", 3), **{"MLM loss": 5.6})
    assert verdict(MORE, CellMeasure(failing, "BLiMP").difference("better row", "base")) == "gates not passed"


def mean_of(scores_S: np.ndarray) -> ResampledStatistic:
    return resample(np.stack((scores_S, np.ones_like(scores_S))), mean)


def test_the_multi_bootstrap_is_the_mean_over_drawn_seeds_of_the_drawn_examples_mean() -> None:
    """Against loops over resamples, seeds and examples."""
    scores = np.random.default_rng(0).normal(size=(3, 7))  # seeds, examples
    found = multi_bootstrap([mean_of(row) for row in scores])
    assert found.value == pytest.approx(scores.mean())
    drawn = np.random.default_rng(1).integers(3, size=(1000, 3))
    for seeds, count, value in zip(drawn, counts_RS(7), found.resampled_R, strict=True):
        examples = [example for example in range(7) for _ in range(int(count[example]))]
        assert value == pytest.approx(np.mean([scores[seed, example] for seed in seeds for example in examples]))


def test_a_difference_of_two_multi_bootstraps_is_paired_over_seeds_and_examples() -> None:
    random = np.random.default_rng(0)
    common = random.normal(0, 1, (6, 1)) + random.normal(0, 1, (1, 400))
    one, other = (
        multi_bootstrap([mean_of(row) for row in common + random.normal(shift, 0.1, common.shape)])
        for shift in (0.05, 0.0)
    )
    paired, alone = one.minus(other).interval(), one.interval()
    assert paired is not None and alone is not None
    assert 0 < paired[1] < 0.05 < paired[2] < 0.1
    assert alone[2] - alone[1] > 0.5  # unpaired, it could not show a difference of .05
