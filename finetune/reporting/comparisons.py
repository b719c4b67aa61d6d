"""Every difference between two models of a report, with its uncertainty over seeds and over examples."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from finetune.reporting.paper_tables import Column
from finetune.reporting.results import Row
from finetune.reporting.significance import Examples, bootstrap_interval, has_examples, permutation_p
from finetune.running.records import EXAMPLES, PREDICTIONS, RunRecord


class Difference(NamedTuple):
    """Second model minus first in one column, in points."""

    column: Column
    first: Row
    second: Row
    seeds: int
    """Seeds that both models were run with, under their best settings."""
    mean: float
    p: float | None
    """From the paired permutation test over seeds; none for fewer than two."""
    interval: tuple[float, float] | None
    """95%, from the paired bootstrap over examples; none without their predictions."""


def differences(rows: Sequence[Row], columns: Sequence[Column], outputs: Sequence[Path]) -> Iterator[Difference]:
    """Every two models in every column, where both ran on the same data with a seed in common.

    `outputs` are the folders that may hold the runs' predictions.
    """
    for column in columns:
        scored = [row for row in rows if column.title in row.cells]
        for first, second in itertools.combinations(scored, 2):
            one, other = ({run.run.seed: run for run in row.cells[column.title].records} for row in (first, second))
            pairs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other)]
            if pairs and pairs[0][0].run.data_sha256 == pairs[0][1].run.data_sha256:
                scores = [[run.last[column.split][column.metric] for run in pair] for pair in pairs]
                found = [100 * (b - a) for a, b in scores]
                yield Difference(
                    column,
                    first,
                    second,
                    seeds=len(pairs),
                    mean=sum(found) / len(found),
                    p=permutation_p(found) if len(found) > 1 else None,
                    interval=_interval(pairs, column, outputs),
                )


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
    """A run's answer to each example of a split, if one of the folders has it."""
    paths = (output / PREDICTIONS / record.run.folder_name() / EXAMPLES for output in outputs)
    found = next(filter(Path.is_file, paths), None)
    return json.loads(found.read_text(encoding="utf-8")).get(split) if found else None
