"""Claims about the replication's report: it reads current evaluations and names outdated ones."""

import json
from pathlib import Path

import pytest

from bench.replication import read_crossing
from bench.replication_report import write_report
from foundation.config import ConfigError


def write_crossing(folder: Path, measure: str) -> Path:
    entry = {"discriminator": "electra-seed0", "accuracy_masked": [0.5, 0.4, 0.6], measure: [0.8, 0.7, 0.9]}
    path = folder / "evaluation" / "seed0" / "crossing.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"entries": [entry], "differences": []}))
    return path


def test_an_evaluation_of_an_older_version_is_refused_and_its_folder_named(tmp_path: Path) -> None:
    path = write_crossing(tmp_path, "auc")
    with pytest.raises(ConfigError) as caught:
        write_report(tmp_path, (0,))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{path}: lacks auc_all") and f"remove {path.parent} " in problem


def test_an_evaluation_of_this_version_is_read(tmp_path: Path) -> None:
    assert read_crossing(write_crossing(tmp_path, "auc_all"))["entries"]
