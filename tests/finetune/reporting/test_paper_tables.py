"""finetune/reporting/paper_tables.py: the paper's numbers are in the right columns."""

import numpy as np
import pytest

from finetune.glue.tasks import AX, TASKS
from finetune.presets import ModelSize
from finetune.reporting.paper_tables import COLUMNS, GLUE_COLUMNS, GLUE_ROWS, SQUAD_ROWS, TABLES, TAGGING_COLUMNS


def test_every_task_and_metric_has_its_column_and_every_column_is_of_one() -> None:
    wanted = {(task.name, split, name) for task in TASKS.values() for split in task.dev_splits for name in task.metrics}
    diagnostic = {("MNLI", AX.name, name) for name in AX.metrics}  # predicted by the model of MNLI
    assert wanted | diagnostic == {(column.task, column.split, column.metric) for column in GLUE_COLUMNS}


def test_the_papers_columns_come_first_in_its_order_and_others_have_no_paper_index() -> None:
    assert [(column.title, column.paper_index) for column in GLUE_COLUMNS] == [
        ("MNLI-m", 0),
        ("MNLI-mm", 1),
        ("AX", None),
        ("QNLI", 2),
        ("QQP", 3),
        ("QQP F1", None),
        ("RTE", 4),
        ("SST-2", 5),
        ("MRPC", 6),
        ("MRPC F1", None),
        ("CoLA", 7),
        ("STS-B Spearman", 8),
        ("STS-B Pearson", 8),
        ("WNLI", None),
    ]


def test_the_papers_gains_follow_from_its_rows() -> None:
    """The text claims +0.9 on MNLI-m for small models, and +0.6 and +0.4 on the average of eight tasks."""
    gains: dict[ModelSize, float] = {"small": 0.6, "base": 0.4}
    for size, gain in gains.items():
        ours, theirs = (GLUE_ROWS[size][row] for row in ("HP_Loss + Focal", "ELECTRA (reimplementation)"))
        differences = np.array(ours, float) - np.array(theirs, float)
        eight = np.delete(differences, 1)  # one of MNLI's two columns is left out
        assert eight.mean() == pytest.approx(gain, abs=0.06)
        assert (differences[0] == pytest.approx(0.9)) == (size == "small")


def test_the_papers_gains_on_squad_follow_from_its_rows() -> None:
    """The text claims +4.2 F1 for small models and +0.52 for base ones."""
    gains: dict[ModelSize, tuple[str, float]] = {"small": ("HP_Dist + Focal", 4.2), "base": ("HP_Loss + Focal", 0.5)}
    for size, (row, gain) in gains.items():
        ours, theirs = (SQUAD_ROWS[size][name] for name in (row, "ELECTRA (reimplementation)"))
        assert (np.array(ours, float) - np.array(theirs, float))[1] == pytest.approx(gain, abs=0.06)


def test_every_table_has_rows_as_wide_as_its_columns_and_unique_titles() -> None:
    titles = [column.title for column in COLUMNS]
    assert len(set(titles)) == len(titles)
    for table in TABLES:
        if not table.paper_rows:
            assert all(column.paper_index is None for column in table.columns)
            continue
        width = 1 + max(column.paper_index for column in table.columns if column.paper_index is not None)
        assert {len(row) for rows in table.paper_rows.values() for row in rows.values()} == {width}


def test_token_classification_has_a_column_for_each_metric_of_dev_and_test_files() -> None:
    assert [column.title for column in TAGGING_COLUMNS] == [
        *("NER F1", "NER Precision", "NER Recall", "NER F1, test", "NER Precision, test", "NER Recall, test"),
        *("POS accuracy", "POS accuracy, test"),
    ]
