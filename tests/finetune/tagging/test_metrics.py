"""finetune/tagging/job.py: seqeval's scores, by hand too, and counts from which they follow."""

import numpy as np
import pytest
import seqeval.metrics

from finetune.reporting.comparisons import summed
from finetune.tagging.files import TASKS
from finetune.tagging.job import count_matches, score

NER, POS = TASKS["NER"], TASKS["POS"]
LABELS = ["O", "B-per", "I-per", "B-loc", "I-loc"]


def of_counts(counts: dict[str, list[int]], metric: str, weights: list[int]) -> float:
    """The metric of sentences that occur so many times, from their counts."""
    columns, statistic = summed(counts, metric)
    return float(np.nan_to_num(statistic(np.stack(columns) @ np.array(weights))))


def random_labels(random: np.random.Generator) -> list[list[str]]:
    return [[str(label) for label in random.choice(LABELS, size=size)] for size in (7, 1, 12, 4)]


def test_an_entity_counts_if_its_bounds_and_its_type_are_right() -> None:
    target = [["B-per", "I-per", "O", "B-loc"], ["B-loc", "O"]]
    predicted = [["B-per", "I-per", "O", "B-per"], ["B-loc", "I-loc"]]
    assert score(NER, target, predicted) == {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3}
    assert count_matches(NER, target, predicted) == {"wanted": [2, 1], "found": [2, 1], "matched": [1, 0]}


def test_without_entities_the_scores_are_0() -> None:
    assert score(NER, [["B-per"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0}


@pytest.mark.parametrize("seed", range(5))
def test_scores_and_counts_agree_with_seqeval_on_random_labels(seed: int) -> None:
    random = np.random.default_rng(seed)
    target, predicted = random_labels(random), random_labels(random)
    found = score(NER, target, predicted)
    assert found["f1"] == seqeval.metrics.f1_score(target, predicted)
    assert found["precision"] == seqeval.metrics.precision_score(target, predicted)
    assert found["recall"] == seqeval.metrics.recall_score(target, predicted)
    counts = count_matches(NER, target, predicted)
    for name, value in found.items():
        assert of_counts(counts, name, [1] * 4) == pytest.approx(value, abs=1e-12)
    right = [a == b for pair in zip(target, predicted, strict=True) for a, b in zip(*pair, strict=True)]
    assert score(POS, target, predicted) == {"accuracy": np.mean(right)}
    assert of_counts(count_matches(POS, target, predicted), "accuracy", [1] * 4) == pytest.approx(np.mean(right))


def test_a_resample_of_sentences_scores_as_those_sentences() -> None:
    random = np.random.default_rng(0)
    target, predicted = random_labels(random), random_labels(random)
    chosen = [0, 2, 2, 3]
    counts = count_matches(NER, target, predicted)
    expected = seqeval.metrics.f1_score([target[i] for i in chosen], [predicted[i] for i in chosen])
    assert of_counts(counts, "f1", [1, 0, 2, 1]) == pytest.approx(expected)
