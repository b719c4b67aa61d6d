"""The paper's claims tested on the runs of `bench/replicate.py`, as Markdown tables.

Every number is `value (low to high)`, a 95% bootstrap interval over held-out sequences within one run. Claims are
tested per seed and never pooled, because an interval over two or three seeds would mean nothing.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep.manifest import load_manifest
from data_prep.shards import IndexedFile
from finetune.running.records import FILE_NAME, read_records
from foundation.config import ConfigError
from foundation.markdown_table import markdown_table
from foundation.stats import Interval

BASELINE = "electra"
LEAST_GAIN = 0.5
"""Nats by which the masked language model must beat the unigram entropy before claims are tested."""
MOST_OF_ENTROPY = 0.95
PROBE_METRICS = {"CoLA": "matthews", "SST-2": "accuracy"}
MEASURES = {"accuracy_masked": "masked detection accuracy", "auc_all": "AUC"}


class Method(NamedTuple):
    """A row of the paper's tables, with overrides."""

    label: str
    row: str
    overrides: tuple[str, ...] = ()


METHODS = {
    BASELINE: Method("ELECTRA", "ELECTRA"),
    "electra-focal": Method("ELECTRA + focal", "ELECTRA", ("objective.gamma=1",)),
    "hp_loss-focal": Method("HP_Loss + focal", "HP_Loss + Focal"),
    "hp_dist-focal": Method("HP_Dist + focal", "HP_Dist + Focal"),
}
SAMPLERS = ("hp_loss-focal", "hp_dist-focal")
"""The methods that learn to sample."""


class Replication(NamedTuple):
    """All measurements, by (method, seed) or by seed."""

    seeds: tuple[int, ...]
    unigram_entropy: float
    metrics: dict[tuple[str, int], dict[str, Any]]
    crossings: dict[int, dict[str, Any]]
    probes: dict[tuple[str, int, str], list[float]]
    """Scores of the fine-tuning seeds, by (method, seed, task)."""


class Claim(NamedTuple):
    """A claim of the paper, with the number that decides it for each seed."""

    text: str
    values: dict[int, Interval]
    holds: Callable[[Interval], bool]

    def verdict(self) -> str:
        held = sum(self.holds(value) for value in self.values.values())
        return "holds" if held == len(self.values) else f"holds in {held} of {len(self.values)} seeds"


def run_name(method: str, seed: int) -> str:
    """Returns the name of a run's folder."""
    return f"{method}-seed{seed}"


def read_replication(output: Path, seeds: tuple[int, ...]) -> Replication:
    """Reads the evaluations and the probes of all runs.

    Raises:
        ConfigError: an evaluation was written by an older version.
    """
    pairs = [(method, seed) for seed in seeds for method in METHODS]
    crossings = {seed: read_crossing(output / "evaluation" / f"seed{seed}" / "crossing.json") for seed in seeds}
    metrics = {pair: _read(output / "runs" / run_name(*pair) / "evaluation" / "metrics.json") for pair in pairs}
    probes: dict[tuple[str, int, str], list[float]] = {}
    for method, seed in pairs:
        for record in read_records(output / "probes" / run_name(method, seed) / FILE_NAME):
            score = record.last["dev"][PROBE_METRICS[record.run.task]]
            probes.setdefault((method, seed, record.run.task), []).append(score)
    return Replication(seeds, unigram_entropy(output / "shards" / "held_out"), metrics, crossings, probes)


def read_crossing(path: Path) -> dict[str, Any]:
    """Reads the evaluation of one seed's runs, every discriminator with every sampler.

    Raises:
        ConfigError: it was written by an older version, with other measures.
    """
    crossing = _read(path)
    if missing := [measure for measure in MEASURES if not all(measure in found for found in crossing["entries"])]:
        raise ConfigError(
            f"{path}: lacks {', '.join(missing)}, so an older version wrote it; remove {path.parent} and rerun the"
            " command to evaluate again"
        )
    return crossing


def unigram_entropy(shards: Path) -> float:
    """Unigram entropy of a folder's tokens without special ones, in nats: the loss of predicting frequencies."""
    manifest = load_manifest(shards)
    counts = np.zeros(manifest.vocab_size, np.int64)
    for shard in manifest.shards:
        counts += np.bincount(IndexedFile(shards / shard.name).data, minlength=manifest.vocab_size)
    special = manifest.special_tokens
    counts[[special.pad, special.cls, special.sep]] = 0
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def markdown(found: Replication) -> str:
    """Returns the report: gates, claims, and the numbers behind them."""
    parts = (gate_table(found), claim_table(found), *number_tables(found))
    return "\n\n".join(parts) + "\n"


def gate_table(found: Replication) -> str:
    """Gates per run: has it learned enough for its numbers to mean something?"""
    rows = []
    for (method, seed), metrics in found.metrics.items():
        loss, share = metrics["mlm_loss"], metrics["detection"]["p_G"]["loss_over_entropy"]
        passed = found.unigram_entropy - loss > LEAST_GAIN and share[2] < MOST_OF_ENTROPY
        shown = (f"{loss:.3f}", f"{metrics['mlm_accuracy']:.3f}", _show(share), "passed" if passed else "NOT passed")
        rows.append((METHODS[method].label, str(seed), *shown))
    head = ("run", "seed", "MLM loss", "MLM accuracy", "L_D / entropy, under p_G", "gates")
    text = (
        f"Gates: MLM loss at least {LEAST_GAIN} below the unigram entropy, {found.unigram_entropy:.3f};"
        f" L_D below {MOST_OF_ENTROPY} times the entropy of the replaced share."
    )
    return f"{text}\n\n{_table(head, rows)}"


def claim_table(found: Replication) -> str:
    """Each claim with its number per seed and its verdict."""
    rows = [
        (claim.text, *(_show(claim.values[seed], signed=True) for seed in found.seeds), claim.verdict())
        for claim in claims(found)
    ]
    return _table(("claim", *(f"seed {seed}" for seed in found.seeds), "verdict"), rows)


def claims(found: Replication) -> Iterator[Claim]:
    """Yields the paper's claims that runs of this size can test."""
    for method in SAMPLERS:
        label = METHODS[method].label
        yield Claim(
            f"{label}, one checkpoint: masked detection accuracy, p_S minus p_G, is below 0",
            _of_runs(found, method, "p_S_minus_p_G", "detection", "accuracy_masked"),
            _below_zero,
        )
        for sampler, distribution, whose in ((BASELINE, "p_G", "the latter's"), (method, "p_S", "its own")):
            for measure, name in MEASURES.items():
                yield Claim(
                    f"{label} is as good as {METHODS[BASELINE].label} or better on {whose} {distribution} replacements:"
                    f" {name}, difference",
                    _differences(found, method, sampler, distribution, measure),
                    _not_below_zero,
                )
        yield Claim(
            f"{label}, one generator: share of maximum probabilities above .9, p_S minus p_G, is below 0",
            _of_runs(found, method, "p_S_minus_p_G", "max_probability", -1),
            _below_zero,
        )
    for group in ("original", "replaced", "all_minus_class_means"):
        text = {"all_minus_class_means": "over all, minus that of knowing only the class,"}.get(group, f"where {group}")
        yield Claim(
            f"HP_Loss + focal: correlation of estimated and actual loss {text} is above 0",
            _of_runs(found, "hp_loss-focal", "estimate_quality", "pearson", group),
            lambda value: value is not None and value[1] > 0,
        )


def number_tables(found: Replication) -> Iterator[str]:
    """Yields tables of detection, sampling distributions with their estimates, and probes of every run."""
    detection, sureness = [], []
    for (method, seed), metrics in found.metrics.items():
        run = (METHODS[method].label, str(seed))
        for name, values in metrics["detection"].items():
            columns = ("accuracy_masked", "accuracy_all", "auc_all", "auc_masked", "replaced_share")
            detection.append((*run, name, *(_show(values[column]) for column in columns)))
        for name, bins in metrics["max_probability"].items():
            estimate = metrics["loss_estimate"][name]
            shown = (_show(bins[-1], 4), _show(estimate["variance"]), _show(estimate["effective_share"]))
            sureness.append((*run, name, *shown))
    yield "How well each discriminator detects its own run's replacements:\n\n" + _table(
        ("run", "seed", "replacements", "masked", "all", "AUC", "AUC, masked", "replaced share"), detection
    )
    yield "Confidence of each distribution, and the estimate of E[L_D] under p_G from its samples:\n\n" + _table(
        ("run", "seed", "distribution", "maximum above .9", "variance", "effective share"), sureness
    )
    yield "Fine-tuning scores, median over seeds (lowest to highest):\n\n" + _table(
        ("run", "seed", *PROBE_METRICS),
        [(METHODS[method].label, str(seed), *_probes(found, method, seed)) for method, seed in found.metrics],
    )


def _probes(found: Replication, method: str, seed: int) -> Iterator[str]:
    for task in PROBE_METRICS:
        scores = found.probes.get((method, seed, task), [])
        yield _show([statistics.median(scores), min(scores), max(scores)]) if scores else "not run"


def _of_runs(found: Replication, method: str, *path: str | int) -> dict[int, Interval]:
    values: dict[int, Any] = {seed: found.metrics[method, seed] for seed in found.seeds}
    for key in path:
        values = {seed: value[key] for seed, value in values.items()}
    return values


def _differences(found: Replication, method: str, sampler: str, distribution: str, measure: str) -> dict[int, Interval]:
    """Difference between a method's discriminator and the baseline's on the same replacements, by seed."""
    wanted = (method, BASELINE, sampler, distribution)
    return {
        seed: entry[measure]
        for seed, crossing in found.crossings.items()
        for entry in crossing["differences"]
        if (*(_method(entry[key]) for key in ("discriminator", "minus", "sampler")), entry["distribution"]) == wanted
    }


def _method(run: str) -> str:
    return Path(run).name.rpartition("-seed")[0]


def _below_zero(value: Interval) -> bool:
    return value is not None and value[2] < 0


def _not_below_zero(value: Interval) -> bool:
    return value is not None and value[2] >= 0


def _show(value: Interval, digits: int = 3, signed: bool = False) -> str:
    if value is None:
        return "undefined"
    sign = "+" if signed else ""
    middle, low, high = (f"{number:{sign}.{digits}f}" for number in value)
    return f"{middle} ({low} to {high})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(markdown_table(head, rows))


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
