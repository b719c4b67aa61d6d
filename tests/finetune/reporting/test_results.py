"""finetune/reporting/results.py: every run counts once, in its model's row, and runs on other data are kept apart."""

import os
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.reporting.results import load_runs, make_rows
from finetune.running.records import append_record
from tests.finetune.conftest import make_record, squad_record


def test_random_weights_have_their_own_row_below_the_others() -> None:
    rows = make_rows([make_record(0.1, random_weights=True), make_record(0.3)])
    assert [row.name for row in rows] == ["runs/small/export", "runs/small/export (random weights)"]
    assert [row.cells["CoLA"].median for row in rows] == [30.0, 10.0]


def test_a_cell_holds_every_seed_of_the_setting_with_the_best_median() -> None:
    weak = [make_record(score, seed=seed) for seed, score in enumerate((0.2, 0.9, 0.3))]
    strong = [make_record(score, seed=seed, epochs=5) for seed, score in enumerate((0.5, 0.4, 0.6))]
    (row,) = make_rows(weak + strong)
    assert row.cells["CoLA"].scores == (50.0, 40.0, 60.0)
    assert row.cells["CoLA"].tried[1].epochs == 5


def test_a_single_lucky_seed_does_not_make_a_setting_better() -> None:
    whole = [make_record(score, seed=seed) for seed, score in enumerate((0.2, 0.4, 0.3))]
    (row,) = make_rows([*whole, make_record(0.9, epochs=5)])
    assert row.cells["CoLA"].scores == (20.0, 40.0, 30.0)
    assert len(row.cells["CoLA"].tried) == 2


def test_a_metric_missing_in_a_run_is_an_empty_cell() -> None:
    whole = squad_record(0.7)
    scores = {name: value for name, value in whole.last["dev"].items() if not name.startswith("NoAns")}
    (row,) = make_rows([whole.model_copy(update={"last": {"dev": scores}})])
    assert "NoAns" not in row.cells
    assert (row.cells["SQuAD 2.0 F1"].scores, row.cells["HasAns F1"].scores) == ((70.0,), (70.0,))


def test_a_model_given_by_two_paths_is_one_row_named_by_the_first() -> None:
    (row,) = make_rows([make_record(0.3, model="model"), make_record(0.5, seed=2, model="/absolute/model")])
    assert (row.name, row.cells["CoLA"].scores) == ("model", (30.0, 50.0))


def test_runs_on_different_data_are_not_mixed() -> None:
    with pytest.raises(ConfigError, match="different CoLA data"):
        make_rows([make_record(), make_record(seed=2, data_sha256="d" * 64)])


def test_a_run_named_twice_counts_once(tmp_path: Path) -> None:
    append_record(tmp_path / "results.jsonl", make_record())
    assert len(load_runs([tmp_path, tmp_path / "results.jsonl"])) == 1


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no results in"):
        load_runs([tmp_path])


def test_a_record_of_an_unknown_task_is_refused(tmp_path: Path) -> None:
    append_record(tmp_path / "results.jsonl", make_record(task="Nope"))
    problem = r"results\.jsonl: run\.task: got 'Nope', expected one of CoLA, .*; remove the line"
    with pytest.raises(ConfigError, match=problem):
        load_runs([tmp_path])


def test_a_pipe_in_the_place_of_results_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.jsonl")
    with pytest.raises(ConfigError, match=r"results\.jsonl is a folder, a pipe or a device; expected records of runs"):
        load_runs([tmp_path])
