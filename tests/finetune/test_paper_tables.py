"""finetune/paper_tables.py: the paper's numbers stand under the right columns."""

import pytest

from finetune.paper_tables import COLUMNS, PAPER_ROWS
from finetune.tasks.glue import TASKS


def test_every_column_is_a_split_and_metric_of_its_task() -> None:
    for column in COLUMNS:
        assert column.split in TASKS[column.task].dev_splits
        assert column.metric in TASKS[column.task].metrics


def test_every_task_and_metric_has_its_column() -> None:
    wanted = {(task.name, split, name) for task in TASKS.values() for split in task.dev_splits for name in task.metrics}
    assert wanted == {(column.task, column.split, column.metric) for column in COLUMNS}


def test_the_papers_gains_follow_from_its_rows() -> None:
    """Its text claims +0.9 on MNLI-m for small models, and +0.6 and +0.4 on the average of eight tasks."""
    for size, gain in (("small", 0.6), ("base", 0.4)):
        ours, theirs = (PAPER_ROWS[size][row] for row in ("HP_Loss + Focal", "ELECTRA (reimplementation)"))
        eight = [index for index in range(9) if index != 1]  # MNLI counts once
        difference = sum(ours[index] - theirs[index] for index in eight) / 8
        assert difference == pytest.approx(gain, abs=0.06)
        assert (ours[0] - theirs[0] == pytest.approx(0.9)) == (size == "small")
