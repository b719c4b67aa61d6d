"""finetune/tasks/glue_hub.py: the hub's copy holds the same examples as GLUE's files."""

import math
from typing import Any

import datasets
import pytest

from data_prep.config import ConfigError
from finetune.tasks.glue import TASKS, Example
from finetune.tasks.glue_files import load_task
from finetune.tasks.glue_hub import from_hub, unseen_set
from finetune.tasks.glue_rows import Reading


def test_rows_of_the_hub_become_the_same_examples() -> None:
    pairs = datasets.Dataset.from_dict(
        {"premise": ["It rained."], "hypothesis": ["It was dry."], "label": [2], "idx": [0]}
    )
    assert from_hub("hub", pairs, task=TASKS["MNLI"]) == [Example(("It rained.", "It was dry."), 2.0)]
    scores = datasets.Dataset.from_dict(
        {"sentence1": ["A man plays."], "sentence2": ["Someone plays."], "label": [3.75]}
    )
    assert from_hub("hub", scores, task=TASKS["STS-B"]) == [Example(("A man plays.", "Someone plays."), 0.75)]


def test_malformed_rows_of_the_hub_are_refused_or_left_out_as_those_of_files() -> None:
    rows = datasets.Dataset.from_dict({"sentence": ["a", "b", "c"], "label": [1, -1, 0]})
    with pytest.raises(ConfigError, match=r"data_dir: copy cola train, line 2: label -1, expected one of 0, 1"):
        from_hub("copy cola train", rows, task=TASKS["CoLA"])
    kept = from_hub("copy cola train", rows, task=TASKS["CoLA"], reading=Reading(skip_malformed=True))
    assert [example.texts[0] for example in kept] == ["a", "c"]


def test_a_row_left_out_of_a_test_set_of_the_hub_keeps_its_number() -> None:
    rows = datasets.Dataset.from_dict({"sentence": ["a", None, "c"], "label": [-1, -1, -1]})
    found = unseen_set("copy cola test", rows, task=TASKS["CoLA"], reading=Reading(skip_malformed=True))
    assert found.indices == ["0", "2"]


def test_a_copy_by_another_name_is_asked_for_each_split_and_the_diagnostic_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, configuration: str, split: str) -> Any:
        asked.append((name, configuration, split))
        label = -1 if split.startswith("test") else 1
        return datasets.Dataset.from_dict({"premise": ["a"], "hypothesis": ["b"], "label": [label], "idx": [8]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_task(TASKS["MNLI"], "hub:someone/copy", Reading(tests=True))
    assert asked == [
        ("someone/copy", configuration, split)
        for configuration, split in (
            ("mnli", "train"),
            ("mnli", "validation_matched"),
            ("mnli", "validation_mismatched"),
            ("mnli", "test_matched"),
            ("mnli", "test_mismatched"),
            ("ax", "test"),
        )
    ]
    assert data.train == [Example(("a", "b"), 1.0)]
    assert list(data.tests) == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
    assert data.tests["AX.tsv"].indices == ["8"]
    assert math.isnan(data.tests["AX.tsv"].examples[0].target)


def test_an_unreachable_hub_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="cannot load nyu-mll/glue cola"):
        load_task(TASKS["CoLA"], "hub")
