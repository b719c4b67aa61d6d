"""finetune/glue/job.py: GLUE's metrics against their definitions, and the labels and scores of a submission."""

import numpy as np
import pytest

from finetune.glue.job import METRICS, score, submission
from finetune.glue.tasks import AX, TASKS, GlueTask

TARGET = np.array([1, 1, 1, 0, 0, 1, 0, 0, 0, 1])
PREDICTED = np.array([1, 0, 1, 0, 1, 1, 0, 0, 1, 1])  # 4 true and 2 false positives, 1 false and 3 true negatives


def test_classification_metrics_follow_their_definitions() -> None:
    values = score(("accuracy", "f1", "matthews"), TARGET, PREDICTED)
    assert values["accuracy"] == pytest.approx(7 / 10)
    assert values["f1"] == pytest.approx(2 * 4 / (2 * 4 + 2 + 1))
    assert values["matthews"] == pytest.approx((4 * 3 - 2 * 1) / np.sqrt(6 * 5 * 5 * 4))


def test_pearson_measures_linear_and_spearman_rank_correlation() -> None:
    target = np.array([0.1, 0.2, 0.4, 0.9])
    assert METRICS["pearson"](target, 3 * target - 1) == pytest.approx(1.0)
    assert METRICS["spearman"](target, np.exp(9 * target)) == pytest.approx(1.0)
    assert METRICS["pearson"](target, np.exp(9 * target)) == pytest.approx(
        np.corrcoef(target, np.exp(9 * target))[0, 1]
    )


@pytest.mark.parametrize("name", METRICS)
def test_a_constant_prediction_has_a_finite_score(name: str) -> None:
    assert np.isfinite(score((name,), TARGET, np.zeros(10))[name])


def test_a_constant_prediction_has_no_correlation() -> None:
    assert score(("matthews", "pearson", "spearman"), TARGET, np.ones(10)) == {
        "matthews": 0,
        "pearson": 0,
        "spearman": 0,
    }


@pytest.mark.parametrize(
    ("task", "predicted", "labels"),
    [
        (TASKS["CoLA"], [1.0, 0.0], ["1", "0"]),
        (TASKS["MNLI"], [0.0, 2.0], ["entailment", "contradiction"]),
        (TASKS["QNLI"], [0.0, 1.0], ["entailment", "not_entailment"]),
        (AX, [1.0, 1.0], ["neutral", "neutral"]),
        (TASKS["STS-B"], [0.75, 1.2], ["3.750", "5.000"]),
        (TASKS["STS-B"], [-0.1, 0.12345], ["0.000", "0.617"]),
    ],
)
def test_a_submission_has_glues_index_and_glues_label_or_score(
    task: GlueTask, predicted: list[float], labels: list[str]
) -> None:
    text = submission(task, ["0", "17"], np.array(predicted))
    assert text == f"index\tprediction\n0\t{labels[0]}\n17\t{labels[1]}\n"
