"""Evaluate pre-training runs on held-out text: detection under p_S and p_G, and what the sampling head knows.

python pretrain/evaluate.py runs/base
python pretrain/evaluate.py runs/base runs/electra --data data/wikibooks/held_out
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from data_prep.command_line import POSITIONAL, run_command
from data_prep.config import ConfigError, StrictConfig

if TYPE_CHECKING:
    import torch

    from pretrain.analysis import Observations
    from pretrain.data import Batch
    from pretrain.electra import Electra
    from pretrain.masked_lm import MaskedLM
    from pretrain.run_folder import RunDescription
    from pretrain.shards import Shards

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

    from pretrain.models import load_trained
    from pretrain.run_folder import read_run

    description = read_run(run)
    shards = open_matching(options.data, description)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, step = load_trained(run)
    folder = run / "evaluation"
    folder.mkdir(exist_ok=True)
    result = {
        "run": str(run),
        "objective": description.run.objective.name,
        "step": step,
        "sequences": min(options.sequences, len(shards)),
        **analyse(model.to(device), lambda: batches(shards, options), device, run),
    }
    (folder / "metrics.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def analyse(
    model: "Electra | MaskedLM", read: "Callable[[], Iterator[Batch]]", device: "torch.device", run: Path
) -> dict[str, Any]:
    """The numbers of the paper's analysis, with what the objective samples (`p_S`) and with what p_G samples."""
    from pretrain.analysis import (
        detection,
        detection_auc,
        estimate_correlation,
        estimate_quality,
        loss_estimate,
        masked_lm_metrics,
        max_probability_shares,
        observe,
    )
    from pretrain.figures import draw_training
    from pretrain.masked_lm import MaskedLM

    draw_training(run, run / "evaluation" / "training.png")
    if isinstance(model, MaskedLM):
        return masked_lm_metrics(model, read(), device)
    observations, metrics = observe(model, read(), device)
    under = {"p_S": observations, "p_G": observe(model, read(), device, from_generator=True)[0]}
    result = {
        **metrics,
        **detection_auc(observations),
        "estimate_correlation": estimate_correlation(observations),
        "estimate_quality": estimate_quality(observations),
        "detection": {name: detection(seen) for name, seen in under.items()},
        "loss_estimate": {name: loss_estimate(seen) for name, seen in under.items()},
        "max_probability": max_probability_shares(observations),
    }
    draw_figures(result, observations, run / "evaluation")
    return result


def open_matching(folder: Path | None, description: "RunDescription") -> "Shards":
    """The shards to evaluate on, by default those held out of the run's data.

    Raises:
        ConfigError: they were made with another tokenizer than the run's.
    """
    from pretrain.shards import Shards, open_held_out

    shards = Shards(folder) if folder else open_held_out(*map(Path, description.data))
    if shards is None:
        raise ConfigError(
            f"data: no held-out shards beside {', '.join(description.data)}; name a folder with --data, or build the"
            " shards with a larger --held_out"
        )
    if shards.manifest.tokenizer_sha256 != description.tokenizer_sha256:
        raise ConfigError(
            f"data: {shards.folders[0]} was made with another tokenizer than the run"
            f" ({shards.manifest.tokenizer_sha256[:12]}, expected {description.tokenizer_sha256[:12]});"
            " build it with the run's tokenizer folder as --vocab"
        )
    return shards


def batches(shards: "Shards", options: EvaluateOptions) -> "Iterator[Batch]":
    """The first sequences of the folder, in order, each with its first mask."""
    import numpy as np

    from pretrain.data import make_batch

    last = min(options.sequences, len(shards))
    for start in range(0, last, options.batch_size):
        index = shards.in_turn(np.arange(start, min(start + options.batch_size, last)))
        yield make_batch(shards, index, np.zeros_like(index), EVALUATION_SEED)


def draw_figures(result: dict[str, Any], observations: "Observations", folder: Path) -> None:
    """Every figure the run has the material for."""
    from pretrain.figures import draw_comparison, draw_detection, draw_estimate

    draw_detection(observations, folder / "detection.png")
    draw_comparison(result, folder / "comparison.png")
    if len(observations.estimated_loss):
        draw_estimate(observations, folder / "estimate.png")


if __name__ == "__main__":
    sys.exit(run_command(main, EvaluateOptions, __doc__))
