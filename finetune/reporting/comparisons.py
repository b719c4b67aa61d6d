"""Differences between every two models of a report, with their uncertainty over seeds and over examples.

Shape letters: R resamples, N examples, K classes.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from finetune.reporting.paper_tables import Column
from finetune.reporting.results import Row
from finetune.running.records import EXAMPLES, PREDICTIONS, RunRecord
from foundation.config import ConfigError, read_object, shown
from foundation.stats import RESAMPLES, bounds, counts_RS, moments, pearson

SIGN_ASSIGNMENTS = 2**16
"""Most that a permutation test tries: all there are for up to 16 seeds."""
_RESAMPLES_AT_ONCE = 100
"""Bounds the memory: 100 resamples of QQP's 40,430 dev examples are 32 MB."""

_EXAMPLES = TypeAdapter(dict[str, dict[str, list[float]]])
Examples = Mapping[str, Any]
"""A dev split in a run's `examples.json`: `predicted` and `target`, counts of matches, or scores by metric."""


class Difference(NamedTuple):
    """The difference of two models in one column: second minus first, in points."""

    column: Column
    first: Row
    second: Row
    seeds: int
    """Seeds that both models were run with, under their best settings."""
    mean: float
    p: float | None
    """p-value of the paired permutation test over seeds; none for fewer than two seeds."""
    interval: tuple[float, float] | None
    """95% interval from the paired bootstrap over examples; none without predictions."""


def differences(rows: Sequence[Row], columns: Sequence[Column], outputs: Sequence[Path]) -> Iterator[Difference]:
    """Yields the difference of every two models in every column, if they share data and at least one seed.

    Checkpoints are compared only with checkpoints of the same pre-training step.

    `outputs` are the folders that may hold the runs' predictions.
    """
    for column in columns:
        scored = [row for row in rows if column.title in row.cells]
        for first, second in itertools.combinations(scored, 2):
            if first.step != second.step:
                continue
            one, other = ({run.run.seed: run for run in row.cells[column.title].records} for row in (first, second))
            pairs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other)]
            if pairs and pairs[0][0].run.data_sha256 == pairs[0][1].run.data_sha256:
                found = [
                    100 * (b.last[column.split][column.metric] - a.last[column.split][column.metric]) for a, b in pairs
                ]
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
    loaded = [tuple(load_examples(record, column, outputs) for record in pair) for pair in pairs]
    whole = [(a, b) for a, b in loaded if a and b]
    if len(whole) < len(pairs):
        return None
    low, high = bootstrap_interval(whole, column.metric)
    return 100 * low, 100 * high


def load_examples(record: RunRecord, column: Column, outputs: Sequence[Path]) -> Examples | None:
    """Loads a run's answers to the examples of a column's split; `None` if no folder has them.

    Also `None` for scores at the best threshold, which would have to be chosen again for each resample.
    """
    paths = (output / PREDICTIONS / record.run.folder_name() / EXAMPLES for output in outputs)
    found = next(filter(Path.is_file, paths), None)
    examples = read_examples(found).get(column.split, {}) if found else {}
    of_questions = column.metric.rpartition("_")[2] in examples and not column.metric.startswith("best")
    return examples if of_questions or "predicted" in examples or "matched" in examples else None


def read_examples(path: Path) -> Mapping[str, Examples]:
    """Reads a run's answers to the examples of each dev split: columns of equal length.

    Raises:
        ConfigError: the file holds anything else.
    """
    fix = "copy it again, or remove it: the report then has no interval for its run"
    try:
        examples = _EXAMPLES.validate_python(read_object(path, "runs", fix))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"runs: {path}: {place}: got {shown(problem['input'])}, expected a number; {fix}") from None
    for split, columns in examples.items():
        if len({len(values) for values in columns.values()}) > 1:
            raise ConfigError(f"runs: {path}: {split} has columns of different lengths; {fix}")
    return examples


def permutation_p(differences: Sequence[float]) -> float:
    """Returns the two-sided p of a paired permutation test: how often random signs give a mean as far from 0.

    With five seeds it can be no smaller than 2/32 = .0625.
    """
    import scipy.stats

    def total(difference_RS: np.ndarray, axis: int) -> np.ndarray:
        return difference_RS.sum(axis).round(9)  # sums in another order differ in the last digit

    tested = scipy.stats.permutation_test(
        [differences], total, permutation_type="samples", vectorized=True, n_resamples=SIGN_ASSIGNMENTS, rng=0
    )
    return float(tested.pvalue)


def bootstrap_interval(pairs: Sequence[tuple[Examples, Examples]], metric: str) -> tuple[float, float]:
    """Returns the 95% interval of the mean difference, second minus first, over paired resamples of the examples.

    `pairs` holds two runs per seed; all of them are scored on the same resamples.
    """
    all_RN = counts_RS(len(next(iter(pairs[0][0].values()))))
    differences = []
    for count_RN in np.split(all_RN, RESAMPLES // _RESAMPLES_AT_ONCE):
        count_RN = count_RN.astype(np.float64)
        differences.append(
            np.mean([scores(b, metric, count_RN) - scores(a, metric, count_RN) for a, b in pairs], axis=0)
        )
    return bounds(np.concatenate(differences))


def scores(examples: Examples, metric: str, count_RN: np.ndarray) -> np.ndarray:
    """Returns the metric on each resample [R], in which each example occurs `count_RN` times."""
    if "predicted" in examples:
        return _METRICS[metric](np.asarray(examples["target"]), np.asarray(examples["predicted"]), count_RN)
    if "matched" in examples:
        totals = [count_RN @ np.asarray(examples[name]) for name in _TOTALS[metric]]
        return _ratio(len(totals) * (count_RN @ np.asarray(examples["matched"])), np.sum(totals, axis=0))
    part, _, name = metric.rpartition("_")
    answerable = np.asarray(examples["answerable"], dtype=bool)
    chosen = {"": np.ones(len(answerable), bool), "HasAns": answerable, "NoAns": ~answerable}[part]
    return _ratio(count_RN @ (np.asarray(examples[name]) * chosen), count_RN @ chosen)


def _matthews(target: np.ndarray, predicted: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """Matthews correlation for any number of classes, as scikit-learn defines it."""
    classes = np.union1d(target, predicted)
    target_RK, predicted_RK = (
        (count_RN @ (values[:, None] == classes)).astype(np.float64)  # fp32 does not hold products of counts exactly
        for values in (target, predicted)
    )
    right, total = count_RN @ (target == predicted), count_RN.sum(1, dtype=np.float64)
    covariance = right * total - (target_RK * predicted_RK).sum(1)
    variances = [total**2 - (counts_RK**2).sum(1) for counts_RK in (target_RK, predicted_RK)]
    return _ratio(covariance, np.sqrt(variances[0] * variances[1]))


def _ranks(values: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """Returns each example's rank in each resample [R, N]; ties get their mean rank."""
    order = np.argsort(values, kind="stable")
    _, first, group = np.unique(values[order], return_index=True, return_inverse=True)
    held = np.add.reduceat(count_RN[:, order], first, axis=1, dtype=np.float64)
    ranks = np.empty(count_RN.shape)
    ranks[:, order] = (np.cumsum(held, axis=1) - held / 2)[:, group]
    return ranks


def _correlation(x_XN: np.ndarray, y_XN: np.ndarray, count_RN: np.ndarray) -> np.ndarray:
    """Pearson correlation; 0 where a side is constant."""
    centered = (values_XN - values_XN.mean(-1, keepdims=True) for values_XN in (x_XN, y_XN))  # against cancellation
    return np.nan_to_num(pearson(np.stack([(column_XN * count_RN).sum(-1) for column_XN in moments(*centered)])))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Returns above / below, and 0 for 0 / 0, as the metrics themselves do."""
    return np.divide(above, below, out=np.zeros(len(below)), where=below != 0, dtype=np.float64)


_TOTALS = {"accuracy": ("wanted",), "recall": ("wanted",), "precision": ("found",), "f1": ("wanted", "found")}
"""Counts in the denominator of a metric of tagged sentences."""
_METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": lambda target, predicted, count_RN: _ratio(count_RN @ (target == predicted), count_RN.sum(1)),
    "f1": lambda target, predicted, count_RN: _ratio(
        2 * (count_RN @ ((target == 1) & (predicted == 1))), count_RN @ ((target == 1).astype(float) + (predicted == 1))
    ),
    "matthews": _matthews,
    "pearson": _correlation,
    "spearman": lambda target, predicted, count_RN: _correlation(
        _ranks(target, count_RN), _ranks(predicted, count_RN), count_RN
    ),
}
