"""finetune/glue/hub.py: the hub's copy holds the same examples as GLUE's files."""

import math
from typing import Any

import datasets
import pytest

from finetune.glue.files import load_task
from finetune.glue.hub import from_hub, unseen_set
from finetune.glue.tasks import TASKS
from finetune.tokens.examples import Example
from foundation.config import ConfigError


def test_rows_of_the_hub_become_the_same_examples() -> None:
    pairs = datasets.Dataset.from_dict(
        {"premise": ["It rained."], "hypothesis": ["It was dry."], "label": [2], "idx": [0]}
    )
    assert from_hub("hub", pairs, task=TASKS["MNLI"], left_out={}) == [Example(("It rained.", "It was dry."), 2.0)]
    scores = datasets.Dataset.from_dict(
        {"sentence1": ["A man plays."], "sentence2": ["Someone plays."], "label": [3.75]}
    )
    assert from_hub("hub", scores, task=TASKS["STS-B"], left_out={}) == [
        Example(("A man plays.", "Someone plays."), 0.75)
    ]


def test_malformed_rows_of_the_hub_are_refused_or_left_out_as_those_of_files() -> None:
    some = {"sentence": ["a", "b", "c"], "label": [1, -1, 0]}
    with pytest.raises(ConfigError, match=r"data_dir: copy cola train, line 2: label -1, expected one of 0, 1"):
        from_hub("copy cola train", datasets.Dataset.from_dict(some), task=TASKS["CoLA"], left_out={})
    many = datasets.Dataset.from_dict({name: values + values[:1] * 997 for name, values in some.items()})
    left_out: dict[str, int] = {}
    kept = from_hub("copy cola train", many, task=TASKS["CoLA"], left_out=left_out)
    assert [example.texts[0] for example in kept] == ["a", "c"] + ["a"] * 997
    assert left_out == {"copy cola train": 1}


def test_a_row_left_out_of_a_test_set_of_the_hub_keeps_its_number() -> None:
    rows = datasets.Dataset.from_dict({"sentence": ["a", None, *["c"] * 998], "label": [-1] * 1_000})
    found = unseen_set("copy cola test", rows, task=TASKS["CoLA"], left_out={})
    assert found.indices == ["0", *map(str, range(2, 1_000))]


def test_a_copy_by_another_name_is_asked_for_each_split_and_the_diagnostic_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, configuration: str, split: str) -> Any:
        asked.append((name, configuration, split))
        label = -1 if split.startswith("test") else 1
        return datasets.Dataset.from_dict({"premise": ["a"], "hypothesis": ["b"], "label": [label], "idx": [8]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_task(TASKS["MNLI"], "hub:someone/copy", tests=True)
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
