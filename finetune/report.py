"""Fine-tuning results as a Markdown table and a figure, beside the paper's rows.

python finetune/report.py RUNS... [--output FILE]
"""

import sys
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from data_prep.command_line import POSITIONAL, run_command
from data_prep.config import ConfigError, StrictConfig
from finetune.paper_tables import COLUMNS, PAPER_ROWS, Column
from finetune.presets import ModelSize
from finetune.records import FILE_NAME, RunRecord, read_records
from finetune.tasks.glue import TASKS

OFFICIAL_TOLERANCE = 0.01
"""Share by which a training set may differ from the official size: copies lack a few damaged rows."""


class ReportOptions(StrictConfig):
    """Command line of `report.py`."""

    runs: Annotated[tuple[Path, ...], POSITIONAL]
    """output folders of run_glue.py, or results.jsonl files"""
    output: Path | None = None
    """Markdown file; the figure stands beside it as .png (first RUNS folder/report.md)"""


@dataclass(frozen=True)
class Cell:
    """One model in one column: the seeds' scores, in per cent, under the setting with the best median."""

    scores: tuple[float, ...]
    settings_tried: int
    collapsed: int
    official_data: bool

    @property
    def median(self) -> float:
        return statistics.median(self.scores)


@dataclass(frozen=True)
class Row:
    """One model: its cells by column title."""

    label: str
    size: ModelSize
    cells: dict[str, Cell] = field(default_factory=dict)


def main(options: ReportOptions) -> None:
    records = load_runs(options.runs)
    rows = make_rows(records)
    first = options.runs[0]
    output = options.output or (first if first.is_dir() else first.parent) / "report.md"
    text = markdown(rows)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"output: cannot write {output}: {error}; give another FILE") from None
    from finetune.report_figure import draw  # matplotlib, which --help need not wait for

    draw(rows, shown_columns(rows), output.with_suffix(".png"))
    print(f"{text}\nwritten to {output} and {output.with_suffix('.png')}")


def load_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """The records of every folder or file named, each run once.

    Raises:
        ConfigError: a path without results.
    """
    records: dict[str, RunRecord] = {}
    for path in paths:
        file = path / FILE_NAME if path.is_dir() else path
        found = read_records(file)
        if not found:
            raise ConfigError(f"runs: no results in {file}; expected the --output folder of a finished run_glue.py")
        records.update({record.run.model_dump_json(): record for record in found})
    return list(records.values())


def make_rows(records: Sequence[RunRecord]) -> list[Row]:
    """One row a model, trained or with random weights, in order of appearance."""
    models: dict[tuple[str, str, bool], list[RunRecord]] = {}
    for record in records:
        key = (record.model, record.run.model_sha256, record.run.random_weights)
        models.setdefault(key, []).append(record)
    versions = [(name, random) for name, _, random in models]
    rows = []
    for (name, digest, random), runs in models.items():
        version = f" {digest[:7]}" if versions.count((name, random)) > 1 else ""
        row = Row(name + version + (" (random weights)" if random else ""), runs[0].model_size)
        for column in COLUMNS:
            of_task = [record for record in runs if record.run.task == column.task]
            if of_task:
                row.cells[column.title] = make_cell(of_task, column)
        rows.append(row)
    return rows


def make_cell(records: Sequence[RunRecord], column: Column) -> Cell:
    """The best setting's scores, as the paper takes the best of its grid.

    Raises:
        ConfigError: runs on different data, which no median may mix.
    """
    if len({record.run.data_sha256 for record in records}) > 1:
        raise ConfigError(f"runs: {records[0].model} was trained on different {column.task} data; report them apart")
    by_setting: dict[str, list[RunRecord]] = {}
    for record in records:
        by_setting.setdefault(record.run.settings.model_dump_json(), []).append(record)
    task = TASKS[column.task]
    split, metric = task.dev_splits[0], task.metrics[0]
    chosen = max(by_setting.values(), key=lambda runs: statistics.median(scores_of(runs, split, metric)))
    return Cell(
        scores=scores_of(chosen, column.split, column.metric),
        settings_tried=len(by_setting),
        collapsed=sum(record.collapsed is not None for record in chosen),
        official_data=is_official(chosen[0]),
    )


def is_official(record: RunRecord) -> bool:
    """Whether the training set has the official one's size."""
    official = TASKS[record.run.task].official_examples
    return abs(record.train_examples - official) <= OFFICIAL_TOLERANCE * official


def scores_of(records: Iterable[RunRecord], split: str, metric: str) -> tuple[float, ...]:
    """The last epoch's scores, in per cent."""
    return tuple(100 * record.last[split][metric] for record in records)


def markdown(rows: Sequence[Row]) -> str:
    """The table, our rows first, and the notes it needs."""
    columns = shown_columns(rows)
    lines = [
        "| model | " + " | ".join(column.title for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in rows:
        cells = [_show(row.cells.get(column.title)) for column in columns]
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    for size in dict.fromkeys(row.size for row in rows):
        for label, values in PAPER_ROWS[size].items():
            cells = [_show_paper(values, column) for column in columns]
            lines.append(f"| *paper, {size}: {label}* | " + " | ".join(cells) + " |")
    return "\n".join(["# Fine-tuning results", "", *lines, "", *notes(rows)]) + "\n"


def shown_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns in which some model has a score."""
    return [column for column in COLUMNS if any(column.title in row.cells for row in rows)]


def _show(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    marks = ("*" if cell.settings_tried > 1 else "") + ("" if cell.official_data else "†")
    collapsed = f", {cell.collapsed} collapsed" if cell.collapsed else ""
    spread = f"{min(cell.scores):.1f}–{max(cell.scores):.1f}"
    return f"**{cell.median:.1f}**{marks} ({spread}; {len(cell.scores)}{collapsed})"


def _show_paper(values: Sequence[float | None], column: Column) -> str:
    value = None if column.paper_index is None else values[column.paper_index]
    return "–" if value is None else f"{value:.1f}"


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know to compare the rows."""
    cells = [cell for row in rows for cell in row.cells.values()]
    titles = {column.title for column in shown_columns(rows)}
    lines = [
        "Dev sets, per cent: **median** (lowest–highest; number of seeds), after the last epoch.",
        "The paper's rows are medians over five seeds; no difference from them is claimed.",
    ]
    if any(cell.collapsed for cell in cells):
        lines += [
            "",
            "Collapsed: the model gives every example the same answer; the run is counted all the same.",
        ]
    if any(cell.settings_tried > 1 for cell in cells):
        lines += [
            "",
            "\\* the best median of several settings, chosen on the dev set itself, as the paper does.",
        ]
    if not all(cell.official_data for cell in cells):
        lines += [
            "",
            "† not trained on the official training set (by its size): not comparable with the paper.",
        ]
    if "STS-B Pearson" in titles:
        lines += [
            "",
            "STS-B: the paper's table says Pearson, its text Spearman; its number stands under both.",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(run_command(main, ReportOptions, __doc__))
