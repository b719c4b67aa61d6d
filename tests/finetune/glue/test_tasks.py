"""finetune/glue/tasks.py: the table of tasks, and the conversion of rows to examples."""

import math

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.glue.tasks import (
    AX,
    TASKS,
    Example,
    ExampleSet,
    GlueTask,
    TaskData,
    parse_label,
    read_example,
    select_tasks,
)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ("RTE CoLA RTE", ["RTE", "CoLA"]),
        ("rte cola CoLA sts-b", ["RTE", "CoLA", "STS-B"]),
        ("all", [*TASKS]),
        ("All", [*TASKS]),
    ],
)
def test_tasks_are_chosen_by_name_or_all_together_in_any_case(given: str, chosen: list[str]) -> None:
    assert [task.name for task in select_tasks(given.split())] == chosen


def test_an_unknown_task_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"task: got 'colla', expected one of all, CoLA, .*; did you mean 'CoLA'\?"):
        select_tasks(["colla"])


def test_a_submission_has_the_eleven_files_required_by_gluebenchmark() -> None:
    assert sorted(file for task in (*TASKS.values(), AX) for file in task.test_files.values()) == [
        "AX.tsv",
        "CoLA.tsv",
        "MNLI-m.tsv",
        "MNLI-mm.tsv",
        "MRPC.tsv",
        "QNLI.tsv",
        "QQP.tsv",
        "RTE.tsv",
        "SST-2.tsv",
        "STS-B.tsv",
        "WNLI.tsv",
    ]


@pytest.mark.parametrize(
    ("label", "task", "expected"),
    [("neutral", "MNLI", 1.0), (1, "MNLI", 1.0), ("1", "CoLA", 1.0), (0, "RTE", 0.0)]
    + [(score, "STS-B", 0.75) for score in ("3.75", 3.75)],
)
def test_a_label_is_glues_word_or_the_hubs_number(label: str | int, task: str, expected: float) -> None:
    assert parse_label(label, TASKS[task]) == expected


@pytest.mark.parametrize(
    ("label", "task"), [(3, "MNLI"), (-1, "RTE"), ("yes", "CoLA"), (None, "CoLA"), (None, "STS-B")]
)
def test_another_label_is_refused(label: object, task: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_label(label, TASKS[task])


@pytest.mark.parametrize(
    ("row", "task"),
    [
        ({"sentence1": "a", "sentence2": "b", "gold_label": "neutral"}, TASKS["MNLI"]),
        ({"premise": "a", "hypothesis": "b", "label": 1}, TASKS["MNLI"]),
        ({"Premise": "a", "Hypothesis": "b", "Label": "neutral"}, AX),
    ],
    ids=["GLUE", "hub", "any case"],
)
def test_columns_have_the_names_of_glue_or_of_the_hub_in_any_case(row: dict[str, object], task: GlueTask) -> None:
    assert read_example(row, task) == Example(("a", "b"), 1.0)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"sentence1": "a", "sentence2": "b"}, "no column 'gold_label' among 'sentence1', 'sentence2'"),
        ({"premise": "a", "hypothesis": None, "label": 1}, "text None, expected a string"),
    ],
)
def test_a_row_without_a_column_or_a_text_is_refused(row: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_example(row, TASKS["MNLI"])


def test_a_row_that_may_lack_its_label_keeps_an_existing_one() -> None:
    for row in ({"index": "7", "sentence": "a"}, {"idx": 5, "sentence": "a", "label": -1}):
        example = read_example(row, TASKS["CoLA"], labeled=False)
        assert (example.texts, math.isnan(example.target)) == (("a",), True)
    assert read_example({"sentence": "a", "label": "1"}, TASKS["CoLA"], labeled=False) == Example(("a",), 1.0)


def test_predictions_for_other_test_sets_have_another_path() -> None:
    one, other = (Example((text,), math.nan) for text in ("a", "b"))
    sets = [(["0"], [one]), (["1"], [one]), (["0"], [other])]
    found = [
        next(iter(TaskData([], {}, {"CoLA.tsv": ExampleSet(TASKS["CoLA"], *parts)}).tests_by_path()))
        for parts in (*sets, sets[0])
    ]
    assert len(set(found)) == 3
    assert found[0] == found[3]
    assert all(path.endswith("/CoLA.tsv") for path in found)
    assert TaskData([], {}).tests_by_path() == {}


def test_the_fingerprint_depends_on_every_example_and_not_on_test_sets() -> None:
    examples = [Example(("good",), 1.0), Example(("good",), 0.0), Example(("good.",), 1.0)]
    assert len({TaskData([example], {"dev": []}).fingerprint() for example in examples}) == 3
    assert TaskData(examples, {}).fingerprint() == TaskData(examples, {}, tests={"x": None}).fingerprint()  # type: ignore[dict-item]
