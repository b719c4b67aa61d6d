"""Evaluate pre-training runs on held-out text: detection, and how well the sampling head knows the loss.

python pretrain/evaluate.py runs/base
python pretrain/evaluate.py runs/base runs/electra --data data/wikibooks/held_out
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from data_prep.command_line import POSITIONAL, run_command
from data_prep.config import ConfigError, StrictConfig

if TYPE_CHECKING:
    from pretrain.analysis import Observations
    from pretrain.data import Batch, Shards
    from pretrain.run_folder import RunDescription

EVALUATION_SEED = 1
"""Keys the draws: every run is asked about the same positions with the same uniforms."""


class EvaluateOptions(StrictConfig):
    """The command line of an evaluation."""

    runs: Annotated[tuple[Path, ...], POSITIONAL, Field(min_length=1)]
    """run folders"""
    data: Path | None = None
    """held-out shards (those beside the run's data)"""
    sequences: int = Field(default=4096, gt=0)
    """sequences to read at most"""
    batch_size: int = Field(default=64, gt=0)
    """sequences at once"""


def main(options: EvaluateOptions) -> None:
    results = [evaluate_run(run, options) for run in options.runs]
    print(json.dumps(results, indent=2))


def evaluate_run(run: Path, options: EvaluateOptions) -> dict[str, Any]:
    """Evaluates one run's newest checkpoint; writes `metrics.json` and the figures to RUN/evaluation."""
    import torch

    from pretrain.analysis import detection_auc, estimate_correlation, observe
    from pretrain.models import load_trained
    from pretrain.run_folder import read_run

    description = read_run(run)
    shards = open_matching(options.data or Path(description.data) / "held_out", description)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, step = load_trained(run)
    observations, metrics = observe(model.to(device), batches(shards, options), device)
    result = {
        "run": str(run),
        "objective": description.run.objective.name,
        "step": step,
        "sequences": min(options.sequences, len(shards)),
        **metrics,
        **detection_auc(observations),
        "estimate_correlation": estimate_correlation(observations),
    }
    folder = run / "evaluation"
    folder.mkdir(exist_ok=True)
    draw_figures(run, observations, folder)
    (folder / "metrics.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def open_matching(folder: Path, description: "RunDescription") -> "Shards":
    """The shards to evaluate on, refused when they were made with another tokenizer than the run's."""
    from pretrain.data import Shards

    shards = Shards(folder)
    if shards.manifest.tokenizer_sha256 != description.tokenizer_sha256:
        raise ConfigError(
            f"data: {folder} was made with another tokenizer than the run ({shards.manifest.tokenizer_sha256[:12]},"
            f" expected {description.tokenizer_sha256[:12]}); build it with the run's tokenizer folder as --vocab"
        )
    return shards


def batches(shards: "Shards", options: EvaluateOptions) -> "Iterator[Batch]":
    """The first sequences of the folder, in order, each with its first mask."""
    import numpy as np

    from pretrain.data import make_batch

    last = min(options.sequences, len(shards))
    for start in range(0, last, options.batch_size):
        index = np.arange(start, min(start + options.batch_size, last))
        yield make_batch(shards, index, np.zeros_like(index), EVALUATION_SEED)


def draw_figures(run: Path, observations: "Observations", folder: Path) -> None:
    """Every figure the run has the material for."""
    from pretrain.figures import draw_detection, draw_estimate, draw_training

    draw_training(run, folder / "training.png")
    draw_detection(observations, folder / "detection.png")
    if len(observations.estimated_loss):
        draw_estimate(observations, folder / "estimate.png")


if __name__ == "__main__":
    sys.exit(run_command(main, EvaluateOptions, __doc__))
