"""What the quickstart shows at its end: one table of what was learned, and whether that is enough."""

import json
import statistics
from pathlib import Path
from typing import NamedTuple

from finetune.running.records import FILE_NAME, read_records
from foundation.config import StrictConfig
from pretrain.training.run_log import read_records as read_log

LEAST_AUC = 0.65
MOST_OF_ENTROPY = 0.95  # a discriminator that has learned nothing has a loss of 1.00 entropies, yet is 85% right


class Losses(StrictConfig):
    """One record of the training log, nats a position."""

    step: int
    generator_loss: float
    sampler_loss: float
    discriminator_loss: float
    discriminator_entropy: float
    """Loss of a discriminator that knows the share of replaced positions and nothing else."""


class Results(StrictConfig):
    """What the stages of the quickstart left behind."""

    first: Losses
    last: Losses
    held_out_loss: float
    held_out_entropy: float
    auc: float
    accuracy_masked: float
    accuracy_all: float
    correlation: dict[str, float | None]
    """Of estimated and actual discriminator loss, by class of the sampled token."""
    score_pretrained: float
    """Matthews correlation, median over the seeds."""
    score_untrained: float


class Row(NamedTuple):
    """A line of the table; `passed` is None where nothing is demanded."""

    name: str
    value: str
    demand: str = ""
    passed: bool | None = None


def read_results(run: Path, glue: Path) -> Results:
    """Collects the results from the folders of the pre-training run and of the fine-tuning runs."""
    log = [{name: record[name] for name in Losses.model_fields} for record in read_log(run, "train")]
    metrics = json.loads((run / "evaluation" / "metrics.json").read_text())
    return Results(
        first=Losses.from_values(log[0]),
        last=Losses.from_values(log[-1]),
        held_out_loss=metrics["discriminator_loss"],
        held_out_entropy=metrics["discriminator_entropy"],
        auc=metrics["auc_all"],
        accuracy_masked=metrics["accuracy_masked"],
        accuracy_all=metrics["accuracy_all"],
        correlation=metrics["estimate_correlation"],
        score_pretrained=median_score(glue, random_weights=False),
        score_untrained=median_score(glue, random_weights=True),
    )


def median_score(glue: Path, random_weights: bool) -> float:
    """Median Matthews correlation over the seeds of one model."""
    records = [r for r in read_records(glue / FILE_NAME) if r.run.random_weights == random_weights]
    return statistics.median(record.last["dev"]["matthews"] for record in records)


def table(results: Results) -> list[Row]:
    """Every line of the summary, the demands among them."""
    first, last = results.first, results.last
    share = results.held_out_loss / results.held_out_entropy
    return [
        Row(f"pre-training, step {first.step} -> {last.step}", ""),
        Row("  generator loss L_G", _change(first.generator_loss, last.generator_loss)),
        Row("  sampling head loss L_S", _change(first.sampler_loss, last.sampler_loss)),
        Row("  discriminator loss L_D", _change(first.discriminator_loss, last.discriminator_loss)),
        Row(
            "  entropy of the replaced share",
            _change(first.discriminator_entropy, last.discriminator_entropy),
        ),
        Row("held-out text", ""),
        Row(
            "  L_D / entropy of the replaced share",
            f"{share:.3f}",
            f"below {MOST_OF_ENTROPY}",
            share < MOST_OF_ENTROPY,
        ),
        Row("  detection AUC", f"{results.auc:.3f}", f"at least {LEAST_AUC}", results.auc >= LEAST_AUC),
        Row(
            "  detection accuracy, masked / all",
            f"{results.accuracy_masked:.3f} / {results.accuracy_all:.3f}",
        ),
        *(
            Row(f"  correlation of the estimate, {name}", "-" if value is None else f"{value:.3f}")
            for name, value in results.correlation.items()
        ),
        Row("acceptability (Matthews, median of the seeds)", ""),
        Row("  the same head on an untrained encoder", f"{results.score_untrained:.3f}"),
        Row(
            "  pre-trained encoder",
            f"{results.score_pretrained:.3f}",
            "above the untrained",
            results.score_pretrained > results.score_untrained,
        ),
    ]


def _change(first: float, last: float) -> str:
    return f"{first:.3f} -> {last:.3f}"


def show(rows: list[Row]) -> str:
    """The table as text."""
    width = max(len(row.name) for row in rows)
    marks = {None: "", True: "ok", False: "FAILED"}
    lines = (f"{row.name:{width}}  {row.value:16}  {row.demand:19}  {marks[row.passed]}" for row in rows)
    return "\n".join(line.rstrip() for line in lines)
