"""Measures of a study's rows and their differences, with intervals over seeds and examples together.

Everything is computed from the cells' JSON. Differences are paired by seed and by example: cells with the same seed
have the same initial weights, order, masks and random draws, and all cells are evaluated on the same examples.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bench.study.cell import CellResult
from bench.study.file import Prediction, Study, blimp_measure
from finetune.reporting.comparisons import resampled
from foundation.stats import RESAMPLES, Interval, ResampledStatistic, mean, resample

Cells = Mapping[tuple[str, int], CellResult]
"""Finished cells by row and seed."""
LEAST_SEEDS = 5
"""With fewer seeds, an interval over seeds is too narrow to decide anything."""


class Effect(NamedTuple):
    """The mean of one row or the difference between two, with its interval."""

    interval: Interval
    seeds: tuple[int, ...]
    """Seeds covered; for a difference, those that both rows have."""
    passed: bool
    """Whether all cells it covers pass the gates."""


def examples_resampled(cell: CellResult, measure: str, study: Study) -> ResampledStatistic:
    """Returns a measure of one cell with its bootstrap over examples; all cells use the same resamples.

    A number without stored examples has the same value on every resample.
    """
    value = float("nan") if (number := cell.numbers[measure]) is None else number
    if measure not in study.known_measures():
        return ResampledStatistic(value, np.full(RESAMPLES, value))
    probe = next((probe for probe in study.probes if probe.measure == measure), None)
    place, _, what = measure.rpartition(" ")
    stored = cell.examples.get(measure) or cell.examples[place]
    columns = {name: part.unpack() for name, part in stored.items()}
    if probe:
        answers = [{name: part[number] for name, part in columns.items()} for number in range(len(probe.seeds))]
        resampled_R = 100 * np.mean([resampled(answer, probe.metric) for answer in answers], axis=0)
    elif measure in map(blimp_measure, study.blimp):
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
    learned = not study.row(cell.row).has_generator or entropy - mlm > study.gates.mlm_gain
    return learned and share < study.gates.loss_over_entropy


class CellMeasure:
    """One measure in all cells that have it."""

    def __init__(self, cells: Cells, measure: str, study: Study) -> None:
        self.cells, self.study = cells, study
        self._found = {
            key: examples_resampled(cell, measure, study) for key, cell in cells.items() if measure in cell.numbers
        }

    def row(self, name: str) -> Effect:
        """Returns a row's mean over its seeds."""
        seeds = tuple(seed for seed in self.study.seeds if (name, seed) in self._found)
        return self._effect(seeds, name)

    def difference(self, name: str, minus: str) -> Effect:
        """Returns the difference of two rows over the seeds that both have."""
        seeds = tuple(seed for seed in self.study.seeds if {(name, seed), (minus, seed)} <= self._found.keys())
        return self._effect(seeds, name, minus)

    def _effect(self, seeds: tuple[int, ...], *names: str) -> Effect:
        if not seeds:
            return Effect(None, (), False)
        found = [multi_bootstrap([self._found[name, seed] for seed in seeds]) for name in names]
        passed = all(passes(self.cells[name, seed], self.study) for name in names for seed in seeds)
        return Effect((found[0].minus(found[1]) if len(found) > 1 else found[0]).interval(), seeds, passed)


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
    if effect.interval is None or not effect.seeds:
        return "not run"
    if not effect.passed:
        return "gates not passed"
    if len(effect.seeds) < LEAST_SEEDS:
        return f"open: {len(effect.seeds)} of at least {LEAST_SEEDS} seeds"
    _, low, high = effect.interval
    at_least, at_most = prediction.bounds
    if high < at_least or low > at_most:
        return "refuted"
    if held := [f"{bound:g}" for bound in prediction.bounds if low <= bound <= high]:
        return f"open: the interval holds {' and '.join(held)}"
    return "holds"
