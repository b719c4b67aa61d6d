"""Claims about a study's report: it is made from the cells' JSON only, and says how many seeds there are."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.study.cell import PackedArray, conditions, is_finished, read_cells, write_cell
from bench.study.report import write_report
from foundation.config import ConfigError
from tests.bench.study_cells import STUDY, make_cell


def write_cells(folder: Path, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        for row, skill in (("base", 1.0), ("better row", 1.6)):
            write_cell(folder, STUDY, make_cell(row, seed, skill))


def test_the_report_of_a_whole_study_decides_its_predictions(tmp_path: Path) -> None:
    write_cells(tmp_path, STUDY.seeds)
    write_report(tmp_path, STUDY)
    report = (tmp_path / "report.md").read_text()
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
    write_cell(
        tmp_path,
        study,
        make_cell("base", 0).model_copy(update={"row": "third", "conditions": conditions(study, third)}),
    )
    write_report(tmp_path, study)
    _, _, after = (tmp_path / "report.md").read_text().partition("## Effects: further rows of the predictions")
    rows = [line.split(" | ")[:2] for line in after.partition("##")[0].splitlines() if line.startswith("| ")][1:]
    assert rows == [["| third", "better row"]]


def test_the_report_of_part_of_a_study_says_so(tmp_path: Path) -> None:
    write_cells(tmp_path, (0, 1))
    write_report(tmp_path, STUDY)
    report = (tmp_path / "report.md").read_text()
    assert "4 of 10 cells" in report and "n=2" in report and "n=5" not in report
    assert "| holds |" not in report


def test_the_report_of_no_cell_has_the_predictions(tmp_path: Path) -> None:
    write_report(tmp_path, STUDY)
    report = (tmp_path / "report.md").read_text()
    assert "0 of 10 cells" in report and report.count("not run") == 2
    assert not (tmp_path / "report.png").exists()


def test_the_report_says_which_cells_the_reference_of_another_machine_measured(tmp_path: Path) -> None:
    write_cells(tmp_path, (0, 1))
    write_report(tmp_path, STUDY)
    assert "## References" not in (tmp_path / "report.md").read_text()
    cell = make_cell("base", 2)
    elsewhere = {"replaced": PackedArray.pack(cell.examples["frozen"]["replaced"].unpack() + 1)}
    examples = cell.examples | {"frozen": cell.examples["frozen"] | elsewhere}
    write_cell(tmp_path, STUDY, cell.model_copy(update={"examples": examples}))
    write_report(tmp_path, STUDY)
    report = (tmp_path / "report.md").read_text()
    assert "| base | 0, 1 | 2 |" in report and "| better row | 0, 1 |  |" in report


def test_a_mean_outside_of_its_interval_is_drawn(tmp_path: Path) -> None:
    for row in ("base", "better row"):
        write_cell(tmp_path, STUDY, make_cell(row, 0, BLiMP=100.0))
    write_report(tmp_path, STUDY)
    assert (tmp_path / "report.png").stat().st_size > 10_000


def test_a_cell_is_read_as_it_was_written_and_fits_100_kb(tmp_path: Path) -> None:
    cell = make_cell("better row", 3)
    write_cell(tmp_path, STUDY, cell)
    assert read_cells(tmp_path, STUDY) == {("better row", 3): cell}
    assert (tmp_path / "better-row-seed3.json").stat().st_size < 100_000


def test_packed_numbers_and_truth_values_are_unpacked_as_they_were() -> None:
    for values in ([[0, 255], [3, 4]], [True, False], [0.25, 300.0, -2.0]):
        found = PackedArray.pack(values).unpack()
        assert found.tolist() == values
        assert (found.dtype == bool) == (np.asarray(values).dtype == bool)


def test_a_cell_of_other_conditions_is_refused(tmp_path: Path) -> None:
    write_cells(tmp_path, (0,))
    with pytest.raises(
        ConfigError, match=r"base-seed0\.json was made with another steps, warmup_steps, held_out_sequences;"
    ):
        write_report(tmp_path, STUDY.scaled(0.5))


def test_more_seeds_rows_and_predictions_keep_the_cells(tmp_path: Path) -> None:
    write_cells(tmp_path, (0,))
    row = STUDY.rows[0].model_copy(update={"name": "third"})
    more = STUDY.model_copy(update={"seeds": (*STUDY.seeds, 5), "rows": (*STUDY.rows, row), "predictions": ()})
    assert len(read_cells(tmp_path, more)) == 2


def test_a_cell_without_a_probe_added_later_is_reported_but_not_finished(tmp_path: Path) -> None:
    write_cells(tmp_path, STUDY.seeds)
    cola, squad = STUDY.probes
    before = STUDY.model_copy(update={"probes": (squad,)})
    cell = make_cell("base", 4)
    numbers = {name: value for name, value in cell.numbers.items() if name != cola.measure}
    row = STUDY.row("base")
    write_cell(tmp_path, STUDY, cell.model_copy(update={"numbers": numbers, "conditions": conditions(before, row)}))
    cells = read_cells(tmp_path, STUDY)
    assert [key for key, found in cells.items() if not is_finished(found, STUDY)] == [("base", 4)]
    write_report(tmp_path, STUDY)
    report = (tmp_path / "report.md").read_text()
    assert "10 of 10 cells" in report and "n=4" in report
    changed = STUDY.model_copy(update={"probes": (cola, squad.model_copy(update={"epochs": 2}))})
    with pytest.raises(ConfigError, match=r"base-seed0\.json was made with another probes"):
        read_cells(tmp_path, changed)


def test_a_damaged_cell_is_refused(tmp_path: Path) -> None:
    write_cells(tmp_path, (0,))
    path = tmp_path / "base-seed0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"numbers": 3}))
    with pytest.raises(ConfigError, match=r"base-seed0\.json is damaged"):
        write_report(tmp_path, STUDY)


def test_cells_of_different_text_are_refused(tmp_path: Path) -> None:
    write_cells(tmp_path, (0,))
    write_cell(tmp_path, STUDY, make_cell("base", 1).model_copy(update={"data_sha256": "1" * 64}))
    with pytest.raises(ConfigError, match=r"different shards .*base-seed1"):
        write_report(tmp_path, STUDY)
