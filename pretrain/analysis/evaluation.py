"""Trained runs evaluated on held-out text: each by itself, at one or several of its checkpoints, then crossed."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from foundation.config import ConfigError
from foundation.files import require_folder
from pretrain.analysis.analysis import PAPER, analyse, as_json, generator, headline
from pretrain.analysis.crossing import Candidate, Entry, cross, crossing, tables
from pretrain.analysis.figures import (
    draw_comparison,
    draw_crossing,
    draw_detection,
    draw_estimate,
    draw_max_probability,
    draw_steps,
    draw_training,
)
from pretrain.analysis.observation import observe, observe_masked_lm
from pretrain.data.batches import Batch, make_batch
from pretrain.data.shards import Shards, open_held_out
from pretrain.engine.checkpoint import Checkpoint, all_valid
from pretrain.method.electra import Electra
from pretrain.model import cpu_ops
from pretrain.training.models import load_checkpoint
from pretrain.training.run_folder import CHECKPOINTS, RunDescription, read_run, write_json

EVALUATION_SEED = 1
"""Keys the draws: every run is asked about the same positions with the same uniforms."""


class HeldOut(NamedTuple):
    """The sequences that a run is evaluated on, and where."""

    shards: Shards
    sequences: int
    batch_size: int
    device: torch.device

    def batches(self) -> Iterator[Batch]:
        """The first sequences of the folder, in order, each with its first mask."""
        for start in range(0, self.sequences, self.batch_size):
            index = self.shards.in_turn(np.arange(start, min(start + self.batch_size, self.sequences)))
            yield make_batch(self.shards, index, np.zeros_like(index), EVALUATION_SEED)


class CheckpointEvaluation(NamedTuple):
    """One checkpoint evaluated by itself."""

    result: dict[str, Any]
    """The content of `metrics.json`."""
    candidate: Candidate | None
    """For the crossing; `None` for a run without a discriminator."""


def evaluate(
    runs: Sequence[Path], steps: Sequence[str], data: Path | None, output: Path | None, sequences: int, batch_size: int
) -> None:
    """Evaluates the chosen checkpoints of each run, then crosses the runs that have a discriminator.

    Raises:
        ConfigError: a folder, checkpoint or data set that cannot be used, before anything is computed.
    """
    descriptions = {run: read_run(run) for run in runs}
    crossing_folder = output or runs[0] / "evaluation"
    for folder in (crossing_folder, *(run / "evaluation" for run in descriptions)):
        require_folder(folder)
    problems = [
        f"runs: {run} was trained on other shards than {runs[0]}; evaluate each by itself, or name with --data shards"
        " that neither was trained on"
        for run, description in descriptions.items()
        if not data and description.data_sha256 != descriptions[runs[0]].data_sha256
    ]
    if problems:
        raise ConfigError(*problems)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        cpu_ops.use()
    held_out = {}
    for run, description in descriptions.items():
        shards = open_matching(data, description)
        held_out[run] = HeldOut(shards, min(sequences, len(shards)), batch_size, device)
    chosen = {run: choose_checkpoints(run, steps) for run in descriptions}
    evaluations = [evaluate_run(run, descriptions[run], chosen[run], held_out[run]) for run in descriptions]
    for (run, description), parts in zip(descriptions.items(), evaluations, strict=True):
        if parts[-1].candidate is None:
            print(f"{run} has no discriminator to cross: objective {description.run.objective.name} replaces nothing")
    if any(parts[-1].candidate for parts in evaluations):
        cross_runs(evaluations, held_out[runs[0]], crossing_folder)


def choose_checkpoints(run: Path, steps: Sequence[str]) -> list[Checkpoint]:
    """The whole checkpoints of a run that are asked for, the oldest first.

    Raises:
        ConfigError: there is none, or none at one of the steps.
    """
    found = all_valid(run / CHECKPOINTS)
    chosen = list(islice(found, 1) if tuple(steps) == ("newest",) else found)[::-1]
    if not chosen:
        raise ConfigError(f"run: {run} has no whole checkpoint yet; train on, or name another run")
    if tuple(steps) in (("newest",), ("all",)):
        return chosen
    by_step = {str(checkpoint.step): checkpoint for checkpoint in chosen}
    if missing := [step for step in steps if step not in by_step]:
        raise ConfigError(
            f"steps: got {' '.join(missing)}, expected newest, all, or steps that {run} has checkpoints of:"
            f" {' '.join(by_step)}"
        )
    return [by_step[step] for step in sorted(set(steps), key=int)]


def open_matching(folder: Path | None, description: RunDescription) -> Shards:
    """The shards to evaluate on, by default those held out of the run's data.

    Raises:
        ConfigError: they were made with another tokenizer than the run's, or hold longer sequences than its model.
    """
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
    if shards.manifest.seq_length > description.run.model.max_positions:
        raise ConfigError(
            f"data: the sequences of {shards.folders[0]} are {shards.manifest.seq_length} long, expected at most"
            f" {description.run.model.max_positions}, the run's max_positions; build them with --seq_length"
            f" {description.run.model.max_positions}"
        )
    return shards


def evaluate_run(
    run: Path, description: RunDescription, chosen: list[Checkpoint], held_out: HeldOut
) -> list[CheckpointEvaluation]:
    """Evaluates the chosen checkpoints; writes the newest's `metrics.json` and figures to RUN/evaluation, and where
    there are several, all of them as `steps.json` and `steps.png`.
    """
    folder = run / "evaluation"
    folder.mkdir(exist_ok=True)
    draw_training(run, folder / "training.png")
    evaluations = [
        evaluate_checkpoint(run, description, checkpoint, held_out, draw=checkpoint == chosen[-1])
        for checkpoint in chosen
    ]
    results = [part.result for part in evaluations]
    for result in results:
        print(f"{run}, step {result['step']}: {one_line(result)}")
    write_json(folder / "metrics.json", results[-1])
    if len(results) > 1:
        write_json(folder / "steps.json", results)
        draw_steps(results, folder / "steps.png")
    return evaluations


def evaluate_checkpoint(
    run: Path, description: RunDescription, checkpoint: Checkpoint, held_out: HeldOut, draw: bool
) -> CheckpointEvaluation:
    """The numbers of the paper's analysis for one checkpoint; with `draw`, its figures too."""
    model = load_checkpoint(description, checkpoint).to(held_out.device)
    about = {
        "run": str(run),
        "objective": description.run.objective.name,
        "step": checkpoint.step,
        "sequences": held_out.sequences,
    }
    if not isinstance(model, Electra):
        originals, metrics = observe_masked_lm(model, held_out.batches(), held_out.device)
        return CheckpointEvaluation(about | metrics | {"generator": as_json(generator(originals))}, None)
    observed = observe(model, held_out.batches(), held_out.device)
    found = analyse(observed)
    numbers = as_json(found)
    result = about | observed.metrics | headline(numbers) | numbers | {"paper": PAPER}
    if draw:
        figures = run / "evaluation"
        draw_detection(observed.learned.judgement, figures / "detection.png")
        draw_comparison(result, figures / "comparison.png")
        if len(observed.learned.estimated_loss):
            draw_estimate(observed.learned, figures / "estimate.png")
    return CheckpointEvaluation(
        result, Candidate(str(run), description, checkpoint, observed.tokens, found["detection"])
    )


def cross_runs(evaluations: list[list[CheckpointEvaluation]], held_out: HeldOut, folder: Path) -> None:
    """Crosses the runs at each step that all were evaluated at; writes `crossing.json` and its figures, and prints its
    tables.
    """
    candidates = [part.candidate for parts in evaluations for part in parts if part.candidate]
    runs = {part.run for part in candidates}
    common = set.intersection(*({part.checkpoint.step for part in candidates if part.run == run} for run in runs))
    if not common:
        print("the runs' checkpoints are not of one step, so they are not crossed; name --steps that all have")
        return
    entries: list[Entry] = []
    for step in sorted(common):
        at_step = [part for part in candidates if part.checkpoint.step == step]
        entries += cross(at_step, held_out.batches, held_out.device)
    crossed = crossing(entries, held_out.sequences)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "crossing.json", crossed)
    draw_crossing(crossed, folder / "crossing.png")
    newest = [parts[-1].result for parts in evaluations if parts[-1].candidate]
    draw_max_probability(newest, folder / "max_probability.png")
    print(tables(crossed))


def one_line(result: dict[str, Any]) -> str:
    """One checkpoint in one line."""
    parts = [f"MLM loss {result['mlm_loss']:.3f}, accuracy {result['mlm_accuracy']:.3f}"]
    if "detection" in result:
        share = result["discriminator_loss"] / result["discriminator_entropy"]
        parts.append(f"L_D / entropy of the replaced share {share:.3f}")
        known = [f"{name} {r:.3f}" for name, r in result["estimate_correlation"].items() if r is not None]
        if known:
            parts.append(f"correlation of the estimate {', '.join(known)}")
    return "; ".join(parts)
