"""Measures of a study's rows and their differences, with intervals over seeds and examples together.

An interval is computed from its cells' examples once, and kept with the results. Differences are paired by seed and by
example: cells with the same seed have the same initial weights, order, masks and random draws, and all cells are
evaluated on the same examples.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from bench.study.file import AGREEMENT, Prediction, Study, blimp_measure
from bench.study.results import MINUS, Bounds, CellResult, Results
from electra_sampler.foundation.stats import RESAMPLES, Interval, ResampledStatistic, mean, resample
from finetune.reporting.comparisons import resampled

LEAST_SEEDS = 5
"""With fewer seeds, an interval over seeds is too narrow to decide anything."""


class Effect(NamedTuple):
    """The mean of one row or the difference between two, with its interval."""

    interval: Interval
    """None if a number is undefined; its ends are NaN if examples of a cell are on another machine."""
    seeds: tuple[int, ...]
    """Seeds covered; for a difference, those that both rows have."""
    passed: bool
    """Whether all cells it covers pass the gates."""


def value_of(cell: CellResult, measure: str) -> float:
    """Returns a number of a cell, NaN if it is undefined."""
    value = cell.numbers[measure]
    return math.nan if value is None else value


def examples_resampled(results: Results, row: str, seed: int, measure: str) -> ResampledStatistic | None:
    """Returns a measure of one cell with its bootstrap over examples, None without the examples; all cells use the same
    resamples.

    A number that never has examples has the same value on every resample.
    """
    study, value = results.study, value_of(results.cells[row, seed], measure)
    if measure not in study.known_measures():
        return ResampledStatistic(value, np.full(RESAMPLES, value))
    probe = next((probe for probe in study.probes if probe.measure == measure), None)
    place, _, what = measure.rpartition(" ")
    columns = results.columns(row, seed, measure, place)
    if not columns:
        return None
    if probe:
        answers = [{name: part[number] for name, part in columns.items()} for number in range(len(probe.seeds))]
        resampled_R = 100 * np.mean([resampled(answer, probe.metric) for answer in answers], axis=0)
    elif measure in (*map(blimp_measure, study.blimp), *AGREEMENT):
        resampled_R = resample(np.stack((50 * columns["right"], np.ones_like(columns["right"]))), mean).resampled_R
    elif what == "AUC":
        groups = (
            ("placed_replaced", columns["replaced"]),
            ("placed_original", columns["tokens"] - columns["replaced"]),
        )
        parts = [resample(np.stack((columns[name], count)), mean) for name, count in groups]
        resampled_R = parts[0].resampled_R + parts[1].resampled_R - parts[0].value
    else:
        names = {"loss": ("loss", "tokens"), "accuracy": ("masked_right", "masked")}[what]
        resampled_R = resample(np.stack([columns[name] for name in names]), mean).resampled_R
    return ResampledStatistic(value, resampled_R)


def passes(cell: CellResult, study: Study) -> bool:
    """Returns whether a cell passes the gates, that is, has learned enough for its numbers to mean something."""
    mlm, entropy, share = (
        math.nan if number is None else number
        for name in ("MLM loss", "unigram entropy", "own loss over entropy")
        for number in [cell.numbers.get(name, -math.inf)]  # a masked language model detects nothing
    )
    learned = not cell.row.has_generator or entropy - mlm > study.gates.mlm_gain
    return learned and share < study.gates.loss_over_entropy


class CellMeasure:
    """One measure in all cells that have it."""

    def __init__(self, results: Results, measure: str) -> None:
        self.results, self.measure = results, measure
        self._resampled = cache(lambda row, seed: examples_resampled(results, row, seed, measure))

    def row(self, name: str) -> Effect:
        """Returns a row's mean over its seeds."""
        return self._effect(name)

    def difference(self, name: str, minus: str) -> Effect:
        """Returns the difference of two rows over the seeds that both have."""
        return self._effect(name, minus)

    def _effect(self, *names: str) -> Effect:
        """Keeps an interval that it computes; without the examples, returns the kept one, perhaps over fewer seeds."""
        cells, study, intervals = self.results.cells, self.results.study, self.results.file.intervals
        seeds = tuple(
            seed
            for seed in study.seeds
            if all((name, seed) in cells and self.measure in cells[name, seed].numbers for name in names)
        )
        if not seeds:
            return Effect(None, (), False)
        bounds = intervals.get(self.measure, {}).get(MINUS.join(names))
        if (bounds is None or bounds.seeds != seeds) and (computed := self._bounds(seeds, names)):
            bounds = computed
            if self.measure in study.known_measures():
                intervals.setdefault(self.measure, {})[MINUS.join(names)] = bounds
        seeds = bounds.seeds if bounds else seeds
        passed = all(passes(cells[name, seed], study) for name in names for seed in seeds)
        means = [statistics.fmean(value_of(cells[name, seed], self.measure) for seed in seeds) for name in names]
        value = means[0] - sum(means[1:])
        low, high = (bounds.low, bounds.high) if bounds else (math.nan, math.nan)
        return Effect(None if math.isnan(value) else [value, low, high], seeds, passed)

    def _bounds(self, seeds: tuple[int, ...], names: tuple[str, ...]) -> Bounds | None:
        """Returns the ends of the Multi-Bootstrap's interval; None if a cell's examples are on another machine, or its
        number is undefined.
        """
        found = []
        for name in names:
            per_seed = [one for seed in seeds if (one := self._resampled(name, seed))]
            if len(per_seed) < len(seeds):
                return None
            found.append(multi_bootstrap(per_seed))
        interval = (found[0].minus(found[1]) if len(found) > 1 else found[0]).interval()
        if interval is None:
            return None
        _, low, high = (float(f"{end:.8g}") for end in interval)  # as printed before and after they are stored
        return Bounds(seeds=seeds, low=low, high=high)


def multi_bootstrap(per_seed: Sequence[ResampledStatistic]) -> ResampledStatistic:
    """Mean over the runs of several seeds, resampled over seeds and examples together (Sellam et al., MultiBERTs, ICLR
    2022).

    All seeds share the resamples of the examples. Resample r also draws seeds with replacement, the same ones on every
    call with as many seeds. So the difference of two results is paired in seeds and examples.
    """
    draws = np.random.default_rng(1).integers(len(per_seed), size=(RESAMPLES, len(per_seed)))
    resampled_RK = np.stack([one.resampled_R for one in per_seed], axis=1)
    drawn_RK = np.take_along_axis(resampled_RK, draws, axis=1)
    return ResampledStatistic(float(np.mean([one.value for one in per_seed])), drawn_RK.mean(axis=1))


def verdict(prediction: Prediction, effect: Effect) -> str:
    """Returns whether an effect agrees with a prediction: "holds", "refuted", or why that is open."""
    if effect.interval is None:
        return "not run"
    if not effect.passed:
        return "gates not passed"
    if len(effect.seeds) < LEAST_SEEDS:
        return f"open: {len(effect.seeds)} of at least {LEAST_SEEDS} seeds"
    _, low, high = effect.interval
    if math.isnan(low):
        return "open: no examples"
    at_least, at_most = prediction.bounds
    if high < at_least or low > at_most:
        return "refuted"
    if held := [f"{bound:g}" for bound in prediction.bounds if low <= bound <= high]:
        return f"open: the interval holds {' and '.join(held)}"
    return "holds"
