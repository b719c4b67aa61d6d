"""finetune/squad/metrics.py: the scores equal the official script's exactly."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.squad.files import Answer, Question, read_squad
from finetune.squad.metrics import best_threshold, evaluate, evaluate_squad1, f1, normalize, question_scores


def question(name: str, *answers: str) -> Question:
    return Question(name, "?", 0, tuple(Answer(text, 0) for text in answers))


@pytest.fixture(scope="module")
def dev(shared_data: Path) -> list[Question]:
    return read_squad(shared_data / "squad" / "dev-v2.0.reconstructed.json").questions


def stored(shared_data: Path, name: str) -> Any:
    return json.loads((shared_data / "squad" / "predictions" / f"{name}.json").read_text())


@pytest.mark.parametrize("system", ["bert_single_google", "bidaf_selfatt_elmo", "nlnet_single"])
def test_real_predictions_have_the_official_scripts_scores(system: str, dev: list[Question], shared_data: Path) -> None:
    assert evaluate(dev, stored(shared_data, system)) == stored(shared_data, f"{system}.official_metrics")


def test_best_thresholds_are_those_of_the_official_script(dev: list[Question], shared_data: Path) -> None:
    predicted = stored(shared_data, "bert_single_google")
    null_scores = stored(shared_data, "bert_single_google.SYNTHETIC_na_prob")
    expected = stored(shared_data, "bert_single_google.with_SYNTHETIC_na_prob.official_metrics")
    assert evaluate(dev, predicted, null_scores) == expected


def test_questions_above_the_threshold_are_scored_as_unanswered(dev: list[Question], shared_data: Path) -> None:
    threshold, predicted = 0.59999, stored(shared_data, "bert_single_google")
    null_scores = stored(shared_data, "bert_single_google.SYNTHETIC_na_prob")
    cut = {name: "" if null_scores[name] > threshold else text for name, text in predicted.items()}
    assert evaluate(dev, predicted, null_scores, threshold).items() >= evaluate(dev, cut).items()


def test_the_best_threshold_reaches_its_reported_score(dev: list[Question], shared_data: Path) -> None:
    predicted = stored(shared_data, "bert_single_google")
    null_scores = stored(shared_data, "bert_single_google.SYNTHETIC_na_prob")
    best = evaluate(dev, predicted, null_scores)
    for name in ("exact", "f1"):
        at_best = evaluate(dev, predicted, null_scores, best[f"best_{name}_thresh"])
        assert at_best[name] == pytest.approx(best[f"best_{name}"], abs=1e-9)


@pytest.mark.parametrize("right", [0, 1, 2])
def test_the_best_threshold_of_logits_reaches_its_score_even_if_no_answers_are_best(right: int) -> None:
    questions = [question("a", "Rome"), question("b", "Oslo"), question("c"), question("d")]
    predicted = dict(zip("abcd", ["Rome" if right else "x", "Oslo" if right > 1 else "x", "y", "y"], strict=True))
    logits = {"a": -5.0, "b": -1.0, "c": -3.0, "d": 0.0}
    found = evaluate(questions, predicted, logits)
    assert found["best_f1"] == (50.0, 75.0, 75.0)[right]
    assert evaluate(questions, predicted, logits, best_threshold(found))["f1"] == found["best_f1"]


def test_reference_answers_reach_full_scores_on_squad_1(shared_data: Path) -> None:
    questions = read_squad(shared_data / "squad" / "dev-v1.1.reconstructed.json").questions
    scores = evaluate_squad1(questions, {question.id: question.answers[-1].text for question in questions})
    assert (scores["exact"], scores["total"]) == (100.0, 10_570)
    assert 99.9 < scores["f1"] <= 100  # a few answers such as "a" have no words after normalization


def test_squad_1_compares_answers_without_words_as_they_are() -> None:
    questions = [question("a", "the", "Rome"), question("b", "the")]
    assert evaluate_squad1(questions, {"a": "an", "b": "an"}) == {"exact": 100, "f1": 0, "total": 2}
    assert evaluate(questions, {"a": "an", "b": "an"})["exact"] == 50  # no references: "an" is right, as "" is


def test_case_punctuation_articles_and_spaces_are_ignored() -> None:
    assert normalize(" The  Cat,\u00a0a DOG\nand an\tend. ") == "cat dog and end"
    assert normalize("theatre an-other") == "theatre another"
    assert question_scores([question("q", "the U.S.")], {"q": "us"})["exact"] == {"q": 1}


def test_f1_counts_words_with_multiplicity() -> None:
    assert f1("new york new york", "york york york") == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert f1("x y", "z") == 0
    assert (f1("the", "a"), f1("", ""), f1("", "x"), f1("x", "an")) == (1, 1, 0, 0)


def test_the_best_reference_counts_and_no_reference_means_the_empty_text() -> None:
    questions = [question("a", "Rome", "in Rome"), question("b"), question("c", "the")]
    scores = evaluate(questions, {"a": "in rome", "b": "", "c": ""})
    assert (scores["exact"], scores["HasAns_total"], scores["NoAns_total"]) == (100, 2, 1)
