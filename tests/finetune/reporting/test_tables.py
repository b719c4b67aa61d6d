"""finetune/reporting/tables.py: the details behind a report's medians."""

from typing import Any

import pytest

from finetune.reporting.comparisons import differences
from finetune.reporting.paper_tables import AVERAGED, COLUMNS, TABLES
from finetune.reporting.results import ALL_TASKS, make_rows
from finetune.reporting.tables import difference_lines, markdown, setting_lines, table_lines
from tests.finetune.conftest import make_record


def test_the_best_setting_of_each_task_is_shown_with_the_varied_values() -> None:
    records = [make_record(0.5, epochs=4), make_record(0.7, epochs=5), make_record(0.6)]
    (line,) = setting_lines(make_rows(records), COLUMNS)[2:]
    assert line == "| CoLA | runs/small/export | learning_rate 0.0003, epochs 5, weight_decay 0 | 3 |"
    head = records[1].run.settings.model_copy(update={"head": "hf"})
    (line,) = setting_lines(make_rows([*records, make_record(0.8, settings=head)]), COLUMNS)[2:]
    assert "epochs 5, weight_decay 0, head hf | 4 |" in line


def test_pairs_of_models_are_rows_and_scores_are_columns() -> None:
    scores = {"dev_matched": {"accuracy": 0.8}, "dev_mismatched": {"accuracy": 0.81}}
    models: list[dict[str, Any]] = [{"model": name, "model_sha256": name * 64} for name in "abc"]
    records = [make_record(0.5, **model) for model in models]
    records += [make_record(task="MNLI", last=scores, **model) for model in models[:2]]
    assert difference_lines(differences(make_rows(records), COLUMNS, []))[:5] == [
        "| difference | MNLI-m | MNLI-mm | CoLA |",
        "|---|---|---|---|",
        "| b - a | +0.0 (1) | +0.0 (1) | +0.0 (1) |",
        "| c - a | – | – | +0.0 (1) |",
        "| c - b | – | – | +0.0 (1) |",
    ]


def test_a_report_shows_differences_for_two_models_and_not_for_one() -> None:
    one = [make_record(score, seed=seed) for seed, score in enumerate((0.5, 0.4, 0.45))]
    other = [
        make_record(score, seed=seed, model="other", model_sha256="c" * 64)
        for seed, score in enumerate((0.6, 0.55, 0.6))
    ]
    text = markdown(make_rows(one + other))
    assert "## GLUE: differences between our own runs" in text
    assert "| difference | CoLA |\n|---|---|\n| other - runs/small/export | +13.3 (p 0.25; 3) |" in text
    assert "differences between our own runs" not in markdown(make_rows(one))


def test_the_average_is_the_papers_and_of_complete_rows_only() -> None:
    whole = [
        make_record(
            task=column.task,
            last={column.split: dict.fromkeys(ALL_TASKS[column.task].metrics, score)},
            model="whole",
            model_sha256="a" * 64,
        )
        for column, score in zip(AVERAGED, (0.8, 0.9, 0.9, 0.7, 0.9, 0.9, 0.6, 0.85), strict=True)
    ]
    part = make_record(0.6, model="part", model_sha256="b" * 64)
    lines = {line.split(" | ")[0].strip("| *"): line for line in table_lines(TABLES[0], make_rows([*whole, part]))}
    assert lines["part"].startswith("| part | – | – |")
    averages = {name: line.rstrip(" |").rpartition(" ")[2] for name, line in lines.items()}
    assert averages["model"] == "average" and averages["whole"] == "81.9" and averages["part"] == "–"
    paper = {name.removeprefix("paper, small: "): value for name, value in averages.items() if "paper" in name}
    assert float(paper["HP_Loss + Focal"]) - float(paper["ELECTRA (reimplementation)"]) == pytest.approx(0.6)
