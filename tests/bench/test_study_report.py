"""Claims about a study's report: it is made from the results only, and says how many seeds there are."""

import json
import shutil
from pathlib import Path

import pytest

from bench.study.cell import is_finished, language_numbers
from bench.study.file import Study, read_study
from bench.study.report import write_report
from bench.study.results import EXAMPLES, FILE_NAME, Results
from electra_sampler.foundation.config import ConfigError
from tests.bench.study_cells import LANGUAGE, STUDY, add, add_cells, make_cell
from tests.conftest import REPOSITORY


def write_cells(folder: Path, seeds: tuple[int, ...]) -> None:
    add_cells(folder, *((row, seed) for seed in seeds for row in ("base", "better row")))


def report_of(folder: Path, study: Study = STUDY, *, keep: bool = True) -> str:
    write_report(folder, study, keep=keep)
    return (folder / "report.md").read_text()


def test_the_report_of_a_whole_study_decides_its_predictions(tmp_path: Path) -> None:
    write_cells(tmp_path, STUDY.seeds)
    report = report_of(tmp_path)
    assert "10 of 10 cells" in report
    assert report.count("| holds |") == report.count("| refuted |") == report.count("| read the tables |") == 1
    assert "| better row | 4.000 | 0.01 | 0.0000 |" in report
    assert (tmp_path / "report.png").stat().st_size > 10_000


def test_rows_that_a_prediction_compares_are_compared_in_every_measure(tmp_path: Path) -> None:
    third = STUDY.rows[0].model_copy(update={"name": "third"})
    pair = STUDY.predictions[0].model_copy(update={"minus": "third"})
    predictions = (*STUDY.predictions, pair, pair.model_copy(update={"row": "third", "minus": "better row"}))
    study = STUDY.model_copy(update={"rows": (*STUDY.rows, third), "predictions": predictions})
    write_cells(tmp_path, (0, 1))
    cell, examples = make_cell("base", 0)
    add(tmp_path, cell.model_copy(update={"row": third}), examples, study)
    _, _, after = report_of(tmp_path, study).partition("## Effects: further rows of the predictions")
    rows = [line.split(" | ")[:2] for line in after.partition("##")[0].splitlines() if line.startswith("| ")][1:]
    assert rows == [["| third", "better row"]]


def test_the_report_of_part_of_a_study_says_so(tmp_path: Path) -> None:
    write_cells(tmp_path, (0, 1))
    report = report_of(tmp_path)
    assert "4 of 10 cells" in report and "n=2" in report and "n=5" not in report
    assert "| holds |" not in report


def test_the_report_of_no_cell_has_the_predictions(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert "0 of 10 cells" in report and report.count("not run") == 2
    assert not (tmp_path / "report.png").exists()


def test_the_report_says_which_cells_the_reference_of_another_machine_measured(tmp_path: Path) -> None:
    write_cells(tmp_path, (0, 1))
    assert "## References" not in report_of(tmp_path)
    cell, examples = make_cell("base", 2)
    add(tmp_path, cell.model_copy(update={"reference": "elsewhere"}), examples)
    report = report_of(tmp_path)
    assert "| base | 0, 1 | 2 |" in report and "| better row | 0, 1 |  |" in report


def test_the_report_on_the_language_has_its_numbers_and_the_intervals_of_its_agreements(tmp_path: Path) -> None:
    right = {"discriminator": [1, 0.5, 0, 1] * 5, "generator": [0] * 20}
    found = {"terms": ["verb, 2 phrases"] * 20, "steps": {"10": {"exact": {"originals": 0.6}, "right": right}}}
    numbers, columns = language_numbers(found)
    for row in ("base", "better row"):
        cell, _ = make_cell(row, 0)
        cell = cell.model_copy(update={"numbers": numbers | {"MLM loss": 2.0, "unigram entropy": 6.0}})
        add(tmp_path, cell, columns, LANGUAGE)
    report = report_of(tmp_path, LANGUAGE)
    assert "a given vocabulary" in report
    assert "| better row | base | +0 (+0 to +0), n=1 | +0 (+0 to +0), n=1 |" in report
    assert "| row | agreement, verb, 2 phrases |" in report
    assert "| base | 0.6 (0.6 to 0.6) | - | - | 0 (0 to 0) |" in report
    assert not (tmp_path / "report.png").exists()


def test_a_mean_outside_of_its_interval_is_drawn(tmp_path: Path) -> None:
    add_cells(tmp_path, ("base", 0), ("better row", 0), BLiMP=100.0)
    write_report(tmp_path, STUDY)
    assert (tmp_path / "report.png").stat().st_size > 10_000


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_the_committed_file_alone_prints_the_report_again_and_stays_as_it_is(tmp_path: Path) -> None:
    write_cells(tmp_path / "here", STUDY.seeds)
    write_report(tmp_path / "here", STUDY)
    assert (tmp_path / "here" / EXAMPLES / "base-seed0.npz").is_file()
    (tmp_path / "there").mkdir()
    shutil.copy(tmp_path / "here" / FILE_NAME, tmp_path / "there")
    write_report(tmp_path / "there", STUDY, keep=False)
    assert content(tmp_path / "there") == content(tmp_path / "here")
    (tmp_path / "there" / "report.md").unlink()
    write_report(tmp_path / "there", STUDY)
    assert content(tmp_path / "there") == content(tmp_path / "here")


@pytest.mark.parametrize("name", ["backbones", "samplers"])
def test_a_committed_study_prints_every_measure_with_its_interval(name: str, tmp_path: Path) -> None:
    committed = REPOSITORY / "bench/results" / name / FILE_NAME
    assert committed.stat().st_size < 170_000
    shutil.copy(committed, tmp_path)
    study = read_study(REPOSITORY / f"bench/studies/{name}.json")
    report, whole = report_of(tmp_path, study, keep=False), len(study.rows) * len(study.seeds)
    assert f"{whole} of {whole} cells" in report and "no examples" not in report and "not run" not in report
    assert (tmp_path / FILE_NAME).read_bytes() == committed.read_bytes()


def test_a_cell_is_read_as_it_was_written_and_is_small(tmp_path: Path) -> None:
    cell, examples = make_cell("better row", 3)
    cell = cell.model_copy(update={"numbers": {"BLiMP": 51.123456, "SQuAD f1": None}})
    assert add(tmp_path, cell, examples).cells == {("better row", 3): cell}
    assert (tmp_path / FILE_NAME).stat().st_size < 3_000


def test_cells_of_other_conditions_are_refused(tmp_path: Path) -> None:
    write_cells(tmp_path, (0,))
    with pytest.raises(
        ConfigError, match=r"results\.json was made with another steps, warmup_steps, held_out_sequences; name"
    ):
        write_report(tmp_path, STUDY.scaled(0.5))
    rows = tuple(row.model_copy(update={"steps": 30}) for row in STUDY.rows)
    with pytest.raises(ConfigError, match=r"was made with another reference, row 'base', row 'better row';"):
        write_report(tmp_path, STUDY.model_copy(update={"rows": rows}))


def test_a_setting_that_studies_gain_has_its_default_in_older_results(tmp_path: Path) -> None:
    write_cells(tmp_path, (0,))
    path = tmp_path / FILE_NAME
    values = json.loads(path.read_text())
    assert values["conditions"].pop("deepspeed_config") is None
    assert values["cells"]["base-seed0"]["row"].pop("preset") is None
    path.write_text(json.dumps(values))
    assert len(Results(tmp_path, STUDY).cells) == 2
    with pytest.raises(ConfigError, match="another deepspeed_config"):
        Results(tmp_path, STUDY.model_copy(update={"deepspeed_config": "other.json"}))


def test_more_seeds_rows_and_predictions_keep_the_cells(tmp_path: Path) -> None:
    write_cells(tmp_path, (0,))
    row = STUDY.rows[0].model_copy(update={"name": "third"})
    more = STUDY.model_copy(update={"seeds": (*STUDY.seeds, 5), "rows": (*STUDY.rows, row), "predictions": ()})
    assert len(Results(tmp_path, more).cells) == 2


def test_cells_of_rows_and_seeds_that_left_the_study_stay_in_the_file(tmp_path: Path) -> None:
    write_cells(tmp_path, (0, 1))
    fewer = STUDY.model_copy(update={"rows": STUDY.rows[:1], "seeds": (0, 2), "predictions": ()})
    assert len(add(tmp_path, *make_cell("base", 2), fewer).cells) == 2
    assert len(Results(tmp_path, STUDY).cells) == 5


def test_a_cell_without_a_probe_added_later_is_reported_but_not_finished(tmp_path: Path) -> None:
    cola, squad = STUDY.probes
    before = STUDY.model_copy(update={"probes": (squad,)})
    cell, examples = make_cell("base", 4)
    numbers = {name: value for name, value in cell.numbers.items() if name != cola.measure}
    add(tmp_path, cell.model_copy(update={"numbers": numbers}), examples, before)
    add_cells(
        tmp_path, *((row.name, seed) for row in STUDY.rows for seed in STUDY.seeds if (row.name, seed) != ("base", 4))
    )
    cells = Results(tmp_path, STUDY).cells
    assert [key for key, found in cells.items() if not is_finished(found, STUDY)] == [("base", 4)]
    report = report_of(tmp_path)
    assert "10 of 10 cells" in report and "n=4" in report
    changed = STUDY.model_copy(update={"probes": (cola, squad.model_copy(update={"epochs": 2}))})
    with pytest.raises(ConfigError, match=r"results\.json was made with another probes"):
        Results(tmp_path, changed)


def test_damaged_results_and_examples_are_refused(tmp_path: Path) -> None:
    write_cells(tmp_path, (0,))
    (tmp_path / EXAMPLES / "base-seed0.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match=r"base-seed0\.npz is damaged; remove it"):
        write_report(tmp_path, STUDY)
    path = tmp_path / FILE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cells": 3}))
    with pytest.raises(ConfigError, match=r"results\.json is damaged \(.*\); restore it"):
        write_report(tmp_path, STUDY)
