"""Every difference between two models of a report, with its uncertainty over seeds and over examples."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from finetune.reporting.paper_tables import Column
from finetune.reporting.results import Cell, Row
from finetune.reporting.significance import Examples, bootstrap_interval, has_examples, permutation_p
from finetune.running.records import EXAMPLES, PREDICTIONS, RunRecord


class Difference(NamedTuple):
    """Second model minus first in one column, in points."""

    column: Column
    first: Row
    second: Row
    seeds: int
    """That both models were run with, under their best settings."""
    mean: float
    p: float | None
    """Of the paired permutation test over seeds; none for fewer than two."""
    interval: tuple[float, float] | None
    """95%, of the paired bootstrap over examples; none where their predictions are not at hand."""


def differences(rows: Sequence[Row], columns: Sequence[Column], outputs: Sequence[Path]) -> Iterator[Difference]:
    """Of every two models in every column, where both ran on the same data with a seed in common.

    `outputs` are the folders that may hold the runs' predictions.
    """
    for column in columns:
        for first, second in itertools.combinations(rows, 2):
            cells = [row.cells.get(column.title) for row in (first, second)]
            if cells[0] and cells[1]:
                yield from _difference(column, first, second, cells[0], cells[1], outputs)


def _difference(
    column: Column, first: Row, second: Row, one: Cell, other: Cell, outputs: Sequence[Path]
) -> Iterator[Difference]:
    by_seed = [{record.run.seed: record for record in cell.records} for cell in (one, other)]
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in sorted(by_seed[0].keys() & by_seed[1])]
    if not pairs or pairs[0][0].run.data_sha256 != pairs[0][1].run.data_sha256:
        return
    found = [100 * (_score(b, column) - _score(a, column)) for a, b in pairs]
    p = permutation_p(found) if len(found) > 1 else None
    interval = _interval(pairs, column, outputs)
    yield Difference(column, first, second, len(pairs), sum(found) / len(found), p, interval)


def _score(record: RunRecord, column: Column) -> float:
    return record.last[column.split][column.metric]


def _interval(
    pairs: Sequence[tuple[RunRecord, RunRecord]], column: Column, outputs: Sequence[Path]
) -> tuple[float, float] | None:
    loaded = [tuple(load_examples(record, column.split, outputs) for record in pair) for pair in pairs]
    whole = [(a, b) for a, b in loaded if a and b and has_examples(a, column.metric)]
    if len(whole) < len(pairs):
        return None
    low, high = bootstrap_interval(whole, column.metric)
    return 100 * low, 100 * high


def load_examples(record: RunRecord, split: str, outputs: Sequence[Path]) -> Examples | None:
    """What a run said of each example of a split, if one of the folders has it."""
    for output in outputs:
        path = output / PREDICTIONS / record.run.folder_name() / EXAMPLES
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8")).get(split)
    return None
