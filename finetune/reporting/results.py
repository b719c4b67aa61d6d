"""Results of finished runs: one row per model, and in each column a cell with the seeds' scores."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra_sampler.foundation.config import ConfigError, one_of, refuse, shown
from finetune.config import FinetuneConfig
from finetune.glue import tasks as glue
from finetune.presets import ModelSize
from finetune.reporting.paper_tables import COLUMNS, Column
from finetune.running.records import FILE_NAME, RunIdentity, RunRecord, Task, read_records
from finetune.squad import files as squad
from finetune.tagging import files as tagging

ALL_TASKS: dict[str, Task] = {
    **glue.TASKS,
    **squad.TASKS,
    **tagging.TASKS,
}
OFFICIAL_TOLERANCE = 0.01
"""Share by which a training set may differ from the official size, since copies lack a few damaged rows."""


@dataclass(frozen=True)
class Cell:
    """One model in one column: a score per seed, in percent, under the model's best setting (see `make_cell`)."""

    scores: tuple[float, ...]
    records: tuple[RunRecord, ...]
    """The runs behind the scores, in the same order."""
    tried: tuple[FinetuneConfig, ...]
    official_data: bool
    """Whether the training set has the official size; true for tasks without an official training file."""

    @property
    def collapsed(self) -> tuple[bool, ...]:
        """Whether each run collapsed, in the order of the scores."""
        return tuple(record.collapsed is not None for record in self.records)

    @property
    def median(self) -> float:
        return statistics.median(self.scores)


@dataclass(frozen=True)
class Row:
    """One model's row of the tables: its cells by column title."""

    name: str
    size: ModelSize
    cells: dict[str, Cell]


def load_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Reads the records in these folders or files, each run once.

    Raises:
        ConfigError: a path has no results, or a result has an unknown task.
    """
    records: dict[RunIdentity, RunRecord] = {}
    for path in paths:
        file = path / FILE_NAME if path.is_dir() else path
        if not (found := read_records(file)):
            raise ConfigError(
                f"runs: no results in {file}; expected the --output of run_glue.py, run_squad.py or run_tagging.py"
            )
        refuse(
            f"runs: {file}: run.task: got {shown(task)}, {one_of(task, ALL_TASKS)}; remove the line"
            for task in (record.run.task for record in found)
            if task not in ALL_TASKS
        )
        records |= {record.run: record for record in found}
    return list(records.values())


def make_rows(records: Sequence[RunRecord]) -> list[Row]:
    """Returns one row per model, in order of first appearance, those with random weights last."""
    models: dict[tuple[str, bool], list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.run.random_weights):
        models.setdefault((record.run.model_sha256, record.run.random_weights), []).append(record)
    named = [(runs[0].model, random) for (_, random), runs in models.items()]
    rows = []
    for (digest, random), runs in models.items():
        version = f" {digest[:7]}" if named.count((runs[0].model, random)) > 1 else ""
        name = runs[0].model + version + (" (random weights)" if random else "")
        cells = {column.title: cell for column in COLUMNS if (cell := make_cell(runs, column))}
        rows.append(Row(name, runs[0].model_size, cells))
    return rows


def make_cell(runs: Sequence[RunRecord], column: Column) -> Cell | None:
    """Returns a model's scores under its best setting, chosen among the settings with the most seeds.

    Returns `None` for a model without scores in the column, such as NoAns on a dev set of answerable questions only.

    Raises:
        ConfigError: the runs used different data, so a median over them means nothing.
    """
    of_task = (record for record in runs if record.run.task == column.task)
    records = [record for record in of_task if column.metric in record.last.get(column.split, {})]
    if not records:
        return None
    if len({record.run.data_sha256 for record in records}) > 1:
        raise ConfigError(
            f"runs: the runs of {records[0].model} used different {column.task} data, so they have no common median;"
            " report them separately"
        )
    by_setting: dict[str, list[RunRecord]] = {}
    for record in records:
        by_setting.setdefault(record.run.settings.model_dump_json(), []).append(record)
    task = ALL_TASKS[column.task]
    most = max(len(runs) for runs in by_setting.values())  # one lucky seed makes no better setting
    whole = [runs for runs in by_setting.values() if len(runs) == most]
    chosen = max(whole, key=lambda runs: statistics.median(scores_of(runs, task.dev_splits[0], task.metrics[0])))
    return Cell(
        scores=scores_of(chosen, column.split, column.metric),
        records=tuple(chosen),
        tried=tuple(runs[0].run.settings for runs in by_setting.values()),
        official_data=not task.official_examples
        or abs(chosen[0].train_examples / task.official_examples - 1) <= OFFICIAL_TOLERANCE,
    )


def scores_of(records: Iterable[RunRecord], split: str, metric: str) -> tuple[float, ...]:
    """Returns each run's score after its last epoch, in percent."""
    return tuple(100 * record.last[split][metric] for record in records)
