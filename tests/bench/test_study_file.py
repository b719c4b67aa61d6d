"""Claims about the file of a study: every mistake in it is named before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.study.file import Probe, read_study
from electra_sampler.foundation.config import ConfigError
from finetune.glue.tasks import TASKS
from tests.conftest import REPOSITORY


@pytest.mark.parametrize("path", sorted((REPOSITORY / "bench/studies").glob("*.json")), ids=lambda path: path.stem)
def test_the_shipped_studies_are_read_and_scale_to_a_hundredth(path: Path) -> None:
    study = read_study(path)
    small = study.scaled(0.01)
    assert small.steps == max(2, round(study.steps / 100)) > small.warmup_steps >= 1
    assert [row.name for row in small.rows] == [row.name for row in study.rows]
    assert study.scaled(1.0) == study


def test_a_probe_is_scored_on_its_tasks_first_dev_split() -> None:
    for task in ("CoLA", "MNLI"):
        assert Probe(task=task, metric="accuracy", epochs=1, seeds=(1,)).split == TASKS[task].dev_splits[0]


ROW = {"name": "A", "row": "ELECTRA"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stepz": 3}, "stepz: unknown key"),
        ({"baseline": "ELEKTRA"}, "baseline: got 'ELEKTRA'"),
        ({"reference": {"row": "ELECTRA", "seed": 0}}, "reference.seed: got 0"),
        ({"warmup_steps": 3000}, "warmup_steps: got 3000"),
        ({"measures": ["blimp"]}, "measures: got 'blimp'"),
        ({"blimp": []}, "measures: got 'BLiMP'"),
        ({"vocab": "vocab.txt"}, "give one of vocab_size, vocab and language"),
        ({"vocab_size": None}, "give one of vocab_size, vocab and language"),
        ({"reference": None}, "measures: got 'difficulty accuracy'"),
        ({"rows": [ROW, {"name": "a", "row": "ELECTRA"}]}, "twice"),
        ({"rows": [{"name": "A"}]}, "give either row or objective"),
        ({"rows": [{"name": "A", "row": "ELECTRA", "set": ["objective.gamma"]}]}, "rows.0.set.0"),
        ({"rows": [{"name": "A", "row": "ELEKTRA"}]}, "row: got 'ELEKTRA'"),
        ({"rows": [{"name": "A", "objective": "electro"}]}, "objective: got 'electro'"),
        ({"rows": [ROW | {"set": ["optim.steeps=3"]}]}, "optim.steeps"),
        ({"predictions": [{"text": "no row", "measure": "BLiMP"}]}, "give measure, row and minus together"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    values = json.loads((REPOSITORY / "bench/studies/replication.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps(values | changes))
    with pytest.raises(ConfigError) as caught:
        read_study(tmp_path / "study.json")
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_no_json_object_is_named(tmp_path: Path) -> None:
    for content in ("{", "[]", '{"steps": 1, "steps": 2}'):
        (tmp_path / "study.json").write_text(content)
        with pytest.raises(ConfigError, match=r"study\.json"):
            read_study(tmp_path / "study.json")
