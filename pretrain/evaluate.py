"""Evaluate pre-training runs on held-out text: detection under p_S and p_G, and what the sampling head knows.

python pretrain/evaluate.py runs/base
python pretrain/evaluate.py runs/base --steps all
python pretrain/evaluate.py runs/electra runs/base --output runs/compared
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from foundation.command_line import POSITIONAL, run_command
from foundation.config import MOST, ConfigError, StrictConfig

if TYPE_CHECKING:
    import torch

    from pretrain.analysis.crossing import Candidate, Entry
    from pretrain.analysis.observation import Observed
    from pretrain.data.batches import Batch
    from pretrain.data.shards import Shards
    from pretrain.engine.checkpoint import Checkpoint
    from pretrain.training.run_folder import RunDescription

EVALUATION_SEED = 1
"""Keys the draws: every run is asked about the same positions with the same uniforms."""


class EvaluateOptions(StrictConfig):
    """The command line of an evaluation."""

    runs: Annotated[tuple[Path, ...], POSITIONAL, Field(min_length=1)]
    """run folders; several are crossed, the first the baseline"""
    steps: tuple[str, ...] = Field(default=("newest",), min_length=1)
    """checkpoints: newest, all, or their steps"""
    data: Path | None = None
    """held-out shards (those beside the runs' data)"""
    output: Path | None = None
    """where the crossing goes (FIRST RUN/evaluation)"""
    sequences: int = Field(default=4096, gt=0, le=MOST)
    """sequences to read at most"""
    batch_size: int = Field(default=64, gt=0, le=4096)
    """sequences at once"""


class Evaluation(NamedTuple):
    """Of one checkpoint."""

    result: dict[str, Any]
    """What `metrics.json` says."""
    candidate: "Candidate | None"
    """For the crossing; a run without discriminator is none."""


def main(options: EvaluateOptions) -> None:
    from foundation.files import require_folder
    from pretrain.model import cpu_ops
    from pretrain.training.run_folder import read_run

    if find_device().type == "cpu":
        cpu_ops.use()
    runs = {run: read_run(run) for run in options.runs}
    crossing_folder = options.output or options.runs[0] / "evaluation"
    for folder in (crossing_folder, *(run / "evaluation" for run in runs)):
        require_folder(folder)
    require_same_data(runs, options)
    shards = {run: open_matching(options.data, description) for run, description in runs.items()}
    chosen = {run: choose_checkpoints(run, options.steps) for run in runs}
    evaluations = [evaluate_run(run, runs[run], shards[run], chosen[run], options) for run in runs]
    for run, parts in zip(options.runs, evaluations, strict=True):
        if parts[-1].candidate is None:
            print(f"{run} has no discriminator to cross: objective {runs[run].run.objective.name} replaces nothing")
    candidates = [part.candidate for parts in evaluations for part in parts if part.candidate]
    if candidates and (crossed := cross_runs(candidates, shards[options.runs[0]], options)):
        newest = [parts[-1].result for parts in evaluations if parts[-1].candidate]
        write_crossing(crossed, newest, crossing_folder)


def require_same_data(runs: "dict[Path, RunDescription]", options: EvaluateOptions) -> None:
    """Refuses to compare runs on text that one of them may have been trained on."""
    first = options.runs[0]
    problems = [
        f"runs: {run} was trained on other shards than {first}; evaluate each by itself, or name with --data shards"
        " that neither was trained on"
        for run, description in runs.items()
        if not options.data and description.data_sha256 != runs[first].data_sha256
    ]
    if problems:
        raise ConfigError(*problems)


def choose_checkpoints(run: Path, steps: Sequence[str]) -> "list[Checkpoint]":
    """The whole checkpoints of a run that are asked for, the oldest first.

    Raises:
        ConfigError: there is none, or none at one of the steps.
    """
    from pretrain.engine.checkpoint import all_valid
    from pretrain.training.run_folder import CHECKPOINTS

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


def evaluate_run(
    run: Path, description: "RunDescription", shards: "Shards", chosen: "list[Checkpoint]", options: EvaluateOptions
) -> list[Evaluation]:
    """Evaluates the chosen checkpoints; writes the newest's `metrics.json` and figures to RUN/evaluation, and where
    there are several, all of them as `steps.json` and `steps.png`.
    """
    from pretrain.analysis.figures import draw_steps, draw_training
    from pretrain.training.run_folder import write_json

    folder = run / "evaluation"
    folder.mkdir(exist_ok=True)
    draw_training(run, folder / "training.png")
    evaluations = [
        evaluate_checkpoint(run, description, checkpoint, shards, options, draw=checkpoint == chosen[-1])
        for checkpoint in chosen
    ]
    results = [part.result for part in evaluations]
    for result in results:
        print(f"{run}, step {result['step']}: {told(result)}")
    write_json(folder / "metrics.json", results[-1])
    if len(results) > 1:
        write_json(folder / "steps.json", results)
        draw_steps(results, folder / "steps.png")
    return evaluations


def evaluate_checkpoint(
    run: Path,
    description: "RunDescription",
    checkpoint: "Checkpoint",
    shards: "Shards",
    options: EvaluateOptions,
    draw: bool,
) -> Evaluation:
    """The numbers of the paper's analysis for one checkpoint; with `draw`, its figures too."""
    from pretrain.analysis.analysis import PAPER, analyse, as_json, generator, headline
    from pretrain.analysis.crossing import Candidate
    from pretrain.analysis.observation import observe, observe_masked_lm
    from pretrain.method.electra import Electra
    from pretrain.training.models import load_checkpoint

    device = find_device()
    model, read = load_checkpoint(description, checkpoint).to(device), batches(shards, options)
    about = {
        "run": str(run),
        "objective": description.run.objective.name,
        "step": checkpoint.step,
        "sequences": min(options.sequences, len(shards)),
    }
    if not isinstance(model, Electra):
        predictions, metrics = observe_masked_lm(model, read, device)
        return Evaluation(about | metrics | {"generator": as_json(generator(predictions))}, None)
    observed = observe(model, read, device)
    found = analyse(observed)
    numbers = as_json(found)
    result = about | observed.metrics | headline(numbers) | numbers | {"paper": PAPER}
    if draw:
        draw_figures(result, observed, run / "evaluation")
    return Evaluation(result, Candidate(str(run), description, checkpoint, observed.tokens, found["detection"]))


def open_matching(folder: Path | None, description: "RunDescription") -> "Shards":
    """The shards to evaluate on, by default those held out of the run's data.

    Raises:
        ConfigError: they were made with another tokenizer than the run's, or hold longer sequences than its model.
    """
    from pretrain.data.shards import Shards, open_held_out

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


def batches(shards: "Shards", options: EvaluateOptions) -> "Iterator[Batch]":
    """The first sequences of the folder, in order, each with its first mask."""
    import numpy as np

    from pretrain.data.batches import make_batch

    last = min(options.sequences, len(shards))
    for start in range(0, last, options.batch_size):
        index = shards.in_turn(np.arange(start, min(start + options.batch_size, last)))
        yield make_batch(shards, index, np.zeros_like(index), EVALUATION_SEED)


def cross_runs(candidates: "list[Candidate]", shards: "Shards", options: EvaluateOptions) -> dict[str, Any] | None:
    """What `crossing.json` holds: the runs at each step that all were evaluated at; `None` without such a step."""
    from pretrain.analysis.crossing import cross, crossing

    runs = {part.run for part in candidates}
    common = set.intersection(*({part.checkpoint.step for part in candidates if part.run == run} for run in runs))
    if not common:
        print("the runs' checkpoints are not of one step, so they are not crossed; name --steps that all have")
        return None
    entries: list[Entry] = []
    for step in sorted(common):
        at_step = [part for part in candidates if part.checkpoint.step == step]
        entries += cross(at_step, lambda: batches(shards, options), find_device())
    return crossing(entries, min(options.sequences, len(shards)))


def write_crossing(crossed: dict[str, Any], newest: list[dict[str, Any]], folder: Path) -> None:
    """`crossing.json`, its tables on the terminal, and the figures that lay the runs beside each other."""
    from pretrain.analysis.crossing import tables
    from pretrain.analysis.figures import draw_crossing, draw_max_probability
    from pretrain.training.run_folder import write_json

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "crossing.json", crossed)
    draw_crossing(crossed, folder / "crossing.png")
    draw_max_probability(newest, folder / "max_probability.png")
    print(tables(crossed))


def told(result: dict[str, Any]) -> str:
    """One checkpoint in one line."""
    said = [f"MLM loss {result['mlm_loss']:.3f}, accuracy {result['mlm_accuracy']:.3f}"]
    if "detection" in result:
        share = result["discriminator_loss"] / result["discriminator_entropy"]
        said += [f"L_D / entropy of the replaced share {share:.3f}"]
        known = {name: value for name, value in result["estimate_correlation"].items() if value is not None}
        said += ["correlation of the estimate " + ", ".join(f"{name} {known[name]:.3f}" for name in known)] * bool(
            known
        )
    return "; ".join(said)


def find_device() -> "torch.device":
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def draw_figures(result: dict[str, Any], observed: "Observed", folder: Path) -> None:
    """Every figure the run has the material for."""
    from pretrain.analysis.figures import draw_comparison, draw_detection, draw_estimate

    draw_detection(observed.learned.judgement, folder / "detection.png")
    draw_comparison(result, folder / "comparison.png")
    if len(observed.learned.estimated_loss):
        draw_estimate(observed.learned, folder / "estimate.png")


if __name__ == "__main__":
    sys.exit(run_command(main, EvaluateOptions, __doc__))
