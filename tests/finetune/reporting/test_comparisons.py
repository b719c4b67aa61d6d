"""finetune/reporting/comparisons.py: differences between models run alike, seed by seed, example by example."""

from pathlib import Path

import pytest

from finetune.reporting.comparisons import differences
from finetune.reporting.paper_tables import GLUE_COLUMNS
from finetune.reporting.results import make_rows
from finetune.running.records import EXAMPLES, RunRecord, write_files
from tests.finetune.conftest import make_record

COLA = [column for column in GLUE_COLUMNS if column.task == "CoLA"]
OTHER = {"model": "other", "model_sha256": "c" * 64}
SEEDS = (1, 2, 3)


def records(*pairs: tuple[float, float]) -> list[RunRecord]:
    """Two models' CoLA runs, one pair a seed."""
    found = [make_record(score, seed=seed) for seed, (score, _) in enumerate(pairs, 1)]
    return found + [make_record(score, seed=seed, **OTHER) for seed, (_, score) in enumerate(pairs, 1)]


def test_the_difference_is_second_minus_first_over_common_seeds() -> None:
    runs = [*records((0.5, 0.6), (0.4, 0.6)), make_record(0.9, seed=7)]
    (found,) = differences(make_rows(runs), COLA, [])
    assert (found.first.label, found.second.label, found.seeds) == ("runs/small/export", "other", 2)
    assert found.mean == pytest.approx(15)
    assert (found.p, found.interval) == (0.5, None)


def test_one_seed_has_no_p_and_other_data_no_difference() -> None:
    (found,) = differences(make_rows(records((0.5, 0.6))), COLA, [])
    assert found.p is None
    runs = [make_record(0.5), make_record(0.6, data_sha256="d" * 64, **OTHER)]
    assert list(differences(make_rows(runs), COLA, [])) == []


def test_the_interval_comes_from_the_kept_answers_of_both_wherever_they_lie(tmp_path: Path) -> None:
    runs = records((0.5, 0.6), (0.4, 0.6))
    target = [0, 1] * 50
    for number, run in enumerate(runs):
        wrong = 30 if run.model == "other" else 45
        predicted = [1 - value if place < wrong else value for place, value in enumerate(target)]
        folder = tmp_path / str(number % 2) / "predictions" / run.run.folder_name()
        write_files(folder, {EXAMPLES: {"dev": {"predicted": predicted, "target": target}}})
    outputs = [tmp_path / "0", tmp_path / "1"]
    (found,) = differences(make_rows(runs), COLA, outputs)
    assert found.interval is not None
    assert 5 < found.interval[0] < 30 < found.interval[1] < 55  # Matthews .4 against .1
    (found,) = differences(make_rows(runs), COLA, outputs[:1])
    assert found.interval is None
