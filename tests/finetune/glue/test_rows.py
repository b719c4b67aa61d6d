"""finetune/glue/rows.py: a few malformed rows are left out and counted; the hub's copy has the files' examples."""

import math
from pathlib import Path
from typing import Any

import datasets
import pytest

from finetune.glue.files import load_task
from finetune.glue.rows import Source, open_file, read
from finetune.glue.tasks import TASKS, Example, GlueTask
from foundation.config import ConfigError


def read_file(path: Path, task: GlueTask, left_out: dict[str, int]) -> list[Example]:
    return read(task, [open_file(path, task)], left_out).examples


def hub(columns: dict[str, list[Any]], name: str = "copy") -> list[Source]:
    """A split on the hub."""
    return [Source(name, enumerate(datasets.Dataset.from_dict(columns), 1))]


def write(folder: Path, *lines: str) -> Path:
    path = folder / "train.tsv"
    path.write_text("".join(f"{line}\n" for line in ("sentence\tlabel", *lines)))
    return path


def test_a_file_with_more_malformed_rows_than_an_official_one_is_refused_and_they_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "fine\t1", "no label", "wrong label\t2")
    left_out: dict[str, int] = {}
    with pytest.raises(ConfigError) as caught:
        read_file(path, TASKS["SST-2"], left_out)
    assert caught.value.problems == (
        f"data_dir: {path}, line 3: 1 columns, expected 2 separated by tabs",
        f"data_dir: {path}, line 4: label '2', expected one of 0, 1",
        f"data_dir: {path}: 2 of 3 rows are malformed, expected at most 1 in 1,000;"
        " fix them, or give the task's own file",
    )
    assert not left_out


def test_many_malformed_rows_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="35 more malformed rows"):
        read_file(write(tmp_path, *["bad"] * 40), TASKS["SST-2"], {})


def test_a_few_malformed_rows_are_left_out_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "fine\t1", *["bad"] * 7, *["good\t0"] * 6_992)
    left_out: dict[str, int] = {}
    examples = read_file(path, TASKS["SST-2"], left_out)
    assert [example.texts[0] for example in examples] == ["fine"] + ["good"] * 6_992
    assert left_out == {str(path): 7}
    said = capsys.readouterr().out
    assert f"{path}: 7 malformed rows left out" in said
    assert "line 3: 1 columns" in said
    assert "2 more malformed rows" in said
    with pytest.raises(ConfigError, match="7 of 6999 rows are malformed"):
        read_file(write(tmp_path, "fine\t1", *["bad"] * 7, *["good\t0"] * 6_991), TASKS["SST-2"], {})


def test_rows_of_the_hub_become_the_same_examples() -> None:
    pairs = hub({"premise": ["It rained."], "hypothesis": ["It was dry."], "label": [2], "idx": [0]})
    assert read(TASKS["MNLI"], pairs, {}).examples == [Example(("It rained.", "It was dry."), 2.0)]
    scores = hub({"sentence1": ["A man plays."], "sentence2": ["Someone plays."], "label": [3.75]})
    assert read(TASKS["STS-B"], scores, {}).examples == [Example(("A man plays.", "Someone plays."), 0.75)]


def test_malformed_rows_of_the_hub_are_refused_or_left_out_as_those_of_files() -> None:
    some = {"sentence": ["a", "b", "c"], "label": [1, -1, 0]}
    with pytest.raises(ConfigError, match=r"data_dir: copy cola train, line 2: label -1, expected one of 0, 1"):
        read(TASKS["CoLA"], hub(some, "copy cola train"), {})
    many = hub({name: values + values[:1] * 997 for name, values in some.items()}, "copy cola train")
    left_out: dict[str, int] = {}
    kept = read(TASKS["CoLA"], many, left_out).examples
    assert [example.texts[0] for example in kept] == ["a", "c"] + ["a"] * 997
    assert left_out == {"copy cola train": 1}


def test_a_row_left_out_of_a_test_set_of_the_hub_keeps_its_number() -> None:
    rows = hub({"sentence": ["a", None, *["c"] * 998], "label": [-1] * 1_000})
    found = read(TASKS["CoLA"], rows, {}, labelled=False)
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


def test_an_example_has_glues_index_or_its_place() -> None:
    rows = [
        {"index": "7", "sentence": "a"},
        {"idx": 5, "sentence": "a"},
        {"id": "q", "sentence": "a"},
        {"sentence": "a"},
    ]
    found = read(TASKS["CoLA"], [Source("test", enumerate(rows, 1))], {}, labelled=False)
    assert found.indices == ["7", "5", "q", "3"]
