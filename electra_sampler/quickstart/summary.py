"""The table at the end of the quickstart: results and their requirements."""

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from finetune.running.records import FILE_NAME, read_records
from pretrain.runs.log import read_metrics

LEAST_AUC = 0.65
MOST_OF_ENTROPY = 0.95  # an untrained discriminator has a loss of 1.00 entropies, yet an accuracy of 85%


class Row(NamedTuple):
    """A line of the table; `passed` is `None` if the value has no requirement."""

    name: str
    value: str
    demand: str = ""
    passed: bool | None = None


def read_results(run: Path, glue: Path) -> dict[str, Any]:
    """Returns what `table` shows, from the folders of the pre-training run and of the fine-tuning runs."""
    log = read_metrics(run, "train")
    return {
        "first": log[0],
        "last": log[-1],
        "held_out": json.loads((run / "evaluation" / "metrics.json").read_text()),
        "pretrained": median_score(glue, random_weights=False),
        "untrained": median_score(glue, random_weights=True),
    }


def median_score(glue: Path, random_weights: bool) -> float:
    """Returns the median Matthews correlation over the seeds, of the pre-trained or the untrained model."""
    records = [r for r in read_records(glue / FILE_NAME) if r.run.random_weights == random_weights]
    return statistics.median(record.last["dev"]["matthews"] for record in records)


def table(
    first: dict[str, Any], last: dict[str, Any], held_out: dict[str, Any], pretrained: float, untrained: float
) -> list[Row]:
    """Returns all lines of the summary, with and without a requirement: of the first and the last record of the
    training log, `metrics.json` of the evaluation, and the median scores of both encoders.
    """
    share = held_out["discriminator_loss"] / held_out["discriminator_entropy"]
    shown = {
        "generator loss L_G": "generator_loss",
        "sampling head loss L_S": "sampler_loss",
        "discriminator loss L_D": "discriminator_loss",
        "entropy of the replaced share": "discriminator_entropy",  # L_D of a discriminator that knows only this share
    }
    return [
        Row(f"pre-training of {last['step']:,} steps, step {first['step']} -> {last['step']}", ""),
        *(Row(f"  {name}", f"{first[key]:.3f} -> {last[key]:.3f}") for name, key in shown.items()),
        Row("held-out text", ""),
        Row(
            "  L_D / entropy of the replaced share",
            f"{share:.3f}",
            f"below {MOST_OF_ENTROPY}",
            share < MOST_OF_ENTROPY,
        ),
        Row(
            "  detection AUC",
            f"{held_out['auc_all']:.3f}",
            f"at least {LEAST_AUC}",
            held_out["auc_all"] >= LEAST_AUC,
        ),
        Row(
            "  detection accuracy, masked / all",
            f"{held_out['accuracy_masked']:.3f} / {held_out['accuracy_all']:.3f}",
        ),
        *(
            Row(f"  correlation of the estimate, {name}", "-" if value is None else f"{value:.3f}")
            for name, value in held_out["estimate_correlation"].items()
        ),
        Row("acceptability (Matthews, median of the seeds)", ""),
        Row("  the same head on an untrained encoder", f"{untrained:.3f}"),
        Row(
            "  pre-trained encoder",
            f"{pretrained:.3f}",
            "above the untrained",
            pretrained > untrained,
        ),
    ]


def show(rows: list[Row]) -> str:
    """Returns the table as text."""
    width = max(len(row.name) for row in rows)
    marks = {None: "", True: "ok", False: "FAILED"}
    lines = (f"{row.name:{width}}  {row.value:16}  {row.demand:19}  {marks[row.passed]}" for row in rows)
    return "\n".join(line.rstrip() for line in lines)
