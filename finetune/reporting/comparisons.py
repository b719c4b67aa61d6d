"""Differences between every two models of a report, with their uncertainty over seeds and over dev examples.

Shape letters: C columns, R resamples, N examples, K classes.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import permutation_test, rankdata

from electra_sampler.foundation.files import read_object
from electra_sampler.foundation.stats import bounds, mean, moments, pearson, resample
from finetune.reporting.paper_tables import Column
from finetune.reporting.results import Row
from finetune.running.records import EXAMPLES, PREDICTIONS, RunRecord

SIGN_ASSIGNMENTS = 2**16
"""Maximum sign assignments that a permutation test tries: all of them for up to 16 seeds."""
Examples = Mapping[str, Any]
"""One dev split of a run's `examples.json`: a list per key (`predicted`, `target`, a count or a metric)."""


class Difference(NamedTuple):
    """The difference of two models in one column: second minus first, in points."""

    column: Column
    first: Row
    second: Row
    seeds: int
    """Number of seeds that both models have under their best settings."""
    mean: float
    p: float | None
    """p-value of the paired permutation test over seeds; `None` for fewer than two seeds."""
    interval: tuple[float, float] | None
    """95% interval from the paired bootstrap over examples; `None` if predictions are missing."""


def differences(rows: Sequence[Row], columns: Sequence[Column], outputs: Sequence[Path]) -> Iterator[Difference]:
    """Yields the difference between each pair of models, per column, if they share data and at least one seed.

    `outputs` are the folders that may hold the runs' predictions.
    """
    for column in columns:
        scored = [row for row in rows if column.title in row.cells]
        for first, second in itertools.combinations(scored, 2):
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
    loaded = [(load_examples(a, column, outputs), load_examples(b, column, outputs)) for a, b in pairs]
    if not all(map(all, loaded)):
        return None
    low, high = bootstrap_interval(loaded, column.metric)
    return 100 * low, 100 * high


def load_examples(record: RunRecord, column: Column, outputs: Sequence[Path]) -> Examples:
    """Loads a run's answers to the dev examples of the column's split; empty if no folder has them.

    Also empty for metrics at the best threshold, which would have to be chosen again for each resample.
    """
    paths = (output / PREDICTIONS / record.run.folder_name() / EXAMPLES for output in outputs)
    found = next(filter(Path.is_file, paths), None)
    fix = "copy the file again, or remove it to report its run without an interval"
    examples = read_object(found, "runs", fix).get(column.split, {}) if found else {}
    of_questions = column.metric.rpartition("_")[2] in examples and not column.metric.startswith("best")
    return examples if of_questions or "predicted" in examples or "matched" in examples else {}


def permutation_p(differences: Sequence[float]) -> float:
    """Returns the two-sided p-value of a paired permutation test: how often random signs give a mean as far from 0.

    With five seeds it can be no smaller than 2/32 = .0625.
    """

    def total(difference_RS: np.ndarray, axis: int) -> np.ndarray:
        return difference_RS.sum(axis).round(9)  # sums in another order differ in the last digit

    tested = permutation_test(
        [differences], total, permutation_type="samples", vectorized=True, n_resamples=SIGN_ASSIGNMENTS, rng=0
    )
    return float(tested.pvalue)


def bootstrap_interval(pairs: Sequence[tuple[Examples, Examples]], metric: str) -> tuple[float, float]:
    """Returns the 95% interval of the mean difference, second minus first, over paired resamples of the examples.

    `pairs` holds two runs per seed; all of them are scored on the same resamples.
    """
    return bounds(np.mean([resampled(b, metric) - resampled(a, metric) for a, b in pairs], axis=0))


def resampled(examples: Examples, metric: str) -> np.ndarray:
    """Returns the metric on each bootstrap resample of the examples [R]; 0 where it is undefined.

    All runs use the same resamples. Spearman's correlation keeps the ranks of the full sample.
    """
    columns, statistic = summed(examples, metric)
    return np.nan_to_num(resample(np.stack(columns).astype(np.float64), statistic).resampled_R)


def summed(examples: Examples, metric: str) -> tuple[Sequence[np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """Returns columns over the examples [N], and the function that computes the metric from their sums."""
    arrays = {name: np.asarray(values) for name, values in examples.items()}
    if "matched" in arrays:
        totals = [arrays[name] for name in _TOTALS[metric]]
        return (len(totals) * arrays["matched"], sum(totals, start=np.zeros(1))), mean
    if "predicted" not in arrays:
        part, _, name = metric.rpartition("_")
        answerable = arrays["answerable"].astype(bool)
        chosen = {"": np.ones_like(answerable), "HasAns": answerable, "NoAns": ~answerable}[part]
        return (arrays[name] * chosen, chosen), mean
    target, predicted = arrays["target"], arrays["predicted"]
    if metric == "f1":
        return (2 * ((target == 1) & (predicted == 1)), (target == 1) * 1 + (predicted == 1)), mean
    if metric == "spearman":
        target, predicted = rankdata(target), rankdata(predicted)
    if metric in ("pearson", "spearman"):
        return moments(target - target.mean(), predicted - predicted.mean()), pearson  # against cancellation
    right = (target == predicted, np.ones(len(target)))
    if metric == "accuracy":
        return right, mean
    classes = np.union1d(target, predicted)
    return (*right, *(target == classes[:, None]), *(predicted == classes[:, None])), _matthews


def _matthews(sums_CR: np.ndarray) -> np.ndarray:
    """Returns the Matthews correlation for any number of classes, as scikit-learn defines it."""
    right, total = sums_CR[:2]
    target_KR, predicted_KR = np.split(sums_CR[2:], 2)
    variances = [total**2 - (counts_KR**2).sum(0) for counts_KR in (target_KR, predicted_KR)]
    return (right * total - (target_KR * predicted_KR).sum(0)) / np.sqrt(variances[0] * variances[1])


_TOTALS = {"accuracy": ("wanted",), "recall": ("wanted",), "precision": ("found",), "f1": ("wanted", "found")}
"""Counts that make up the denominator of each metric of token classification."""
