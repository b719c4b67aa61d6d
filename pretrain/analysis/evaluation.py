"""Evaluates trained runs on held-out text: each run by itself, at one or several checkpoints, then crossed.

Crossing: every run's discriminator judges the replacements of every run's sampler (crossing.py).
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from electra_sampler.foundation.config import ConfigError, refuse
from electra_sampler.foundation.files import require_folder, write_atomically
from pretrain.analysis.analysis import PAPER, analyze, as_json, headline, regime, sequence_sums, unigram_entropy
from pretrain.analysis.crossing import Candidate, cross, crossing, tables
from pretrain.analysis.figures import draw_comparison, draw_confidence, draw_steps
from pretrain.analysis.observation import observe, oracle_distance
from pretrain.data.batches import HELD_OUT_SEED, Batch, make_batch
from pretrain.data.shards import Shards, open_held_out
from pretrain.engine.checkpoint import Checkpoint
from pretrain.method.electra import Detection
from pretrain.model.kernels import cpu_ops
from pretrain.runs.folder import RunDescription, data_of, read_run, write_json
from pretrain.runs.models import choose_checkpoints, load_checkpoint

LEAST_COUNTED = 4096
"""Sequences to count word pieces in. With the word pieces of 64, the entropy of novels was 6.0 nats, of 4,096 6.5."""


class HeldOut(NamedTuple):
    """The sequences that a run is evaluated on, and the device to run on."""

    shards: Shards
    sequences: int
    batch_size: int
    device: torch.device
    oracle_sequences: int = 0
    """Sequences on which the distance from the oracle is measured."""

    def unigram_entropy(self) -> float:
        """Returns the entropy in nats of the word pieces, special tokens excluded, of these sequences or of
        `LEAST_COUNTED`: that of few word pieces is too low.
        """
        index = self.shards.mixture.in_turn(np.arange(max(self.sequences, min(LEAST_COUNTED, len(self.shards)))))
        ids_BL, *_ = self.shards.read(index, np.zeros_like(index))
        counts_V = np.bincount(ids_BL.flatten(), minlength=self.shards.manifest.vocab_size)
        counts_V[[*self.shards.manifest.special_tokens.model_dump(exclude={"unk"}).values()]] = 0
        return unigram_entropy(counts_V)

    def batches(self) -> Iterator[Batch]:
        """Yields the first sequences of the folder, in order, each with the first of its masks, on the device."""
        for start in range(0, self.sequences, self.batch_size):
            index = self.shards.mixture.in_turn(np.arange(start, min(start + self.batch_size, self.sequences)))
            yield make_batch(self.shards, index, np.zeros_like(index), HELD_OUT_SEED).to(self.device)


def evaluate(
    runs: Sequence[Path],
    steps: Sequence[str],
    data: Path | None,
    output: Path | None,
    sequences: int,
    oracle_sequences: int,
    batch_size: int,
) -> None:
    """Evaluates the chosen checkpoints of each run, then crosses the runs that have a discriminator.

    Raises:
        ConfigError: a folder, checkpoint or data set cannot be used; raised before anything is computed.
    """
    descriptions = {run: read_run(run) for run in runs}
    crossing_folder = output or runs[0] / "evaluation"
    for folder, field in ((crossing_folder, "output"), *((run / "evaluation", "runs") for run in descriptions)):
        require_folder(folder, field)
    refuse(
        f"runs: {run} was trained on other shards than {runs[0]}; evaluate them separately, or name with --data shards"
        " that neither was trained on"
        for run, description in descriptions.items()
        if not data and description.data_sha256 != descriptions[runs[0]].data_sha256
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        cpu_ops.use()
    held_out = {}
    for run, description in descriptions.items():
        shards = open_matching(data, description)
        whole, part = (min(count, len(shards)) for count in (sequences, oracle_sequences))
        held_out[run] = HeldOut(shards, whole, batch_size, device, part)
    chosen = {run: choose_checkpoints(run, steps) for run in descriptions}
    evaluations = [evaluate_run(run, descriptions[run], chosen[run], held_out[run]) for run in descriptions]
    for (run, description), parts in zip(descriptions.items(), evaluations, strict=True):
        if not parts[-1].detection:
            print(f"{run} is not crossed: objective {description.run.objective.name} has no discriminator")
    if to_cross := [parts for parts in evaluations if parts[-1].detection]:
        cross_runs(to_cross, held_out[runs[0]], crossing_folder)
        if len(to_cross) > 1:
            crossing_folder.mkdir(parents=True, exist_ok=True)
            draw_confidence([parts[-1].result for parts in to_cross], crossing_folder / "confidence.png")


def open_matching(folder: Path | None, description: RunDescription) -> Shards:
    """Opens the shards to evaluate on, by default the held-out part of the run's data.

    Raises:
        ConfigError: there are no such shards, the run's data is no longer what it was trained on, their tokenizer is
            not the run's, or their sequences are too long for the run's model.
    """
    shards = Shards(folder) if folder else open_held_out(*data_of(description))
    if shards is None:
        raise ConfigError(
            f"data: no held-out shards in {', '.join(description.data)}; choose a folder with --data, or build the"
            " shards with a larger --held_out"
        )
    if shards.manifest.tokenizer_sha256 != description.tokenizer_sha256:
        raise ConfigError(
            f"data: {shards.folders[0]} was made with another tokenizer than the run's; build it with the run's"
            " tokenizer folder as --vocab"
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
) -> list[Candidate]:
    """Evaluates the chosen checkpoints of a run and writes the results to RUN/evaluation.

    `metrics.json` and the figure describe the newest checkpoint. If there are several, `steps.json` covers all of them.
    """
    folder = run / "evaluation"
    evaluations = [evaluate_checkpoint(run, description, checkpoint, held_out) for checkpoint in chosen]
    results = [part.result for part in evaluations]
    for result in results:
        print(f"{run}, step {result['step']}: {one_line(result)}")
        if "originals_drawn" in result:
            sure, replaced = result["max_probability"]["p_G"][-1][0], result["detection"]["p_G"]["replaced_share"][0]
            below = result["unigram_entropy"] - result["mlm_loss"]
            print(f"  p_G's regime: {regime(result['originals_drawn'], sure, below, replaced)}")
    write_json(folder / "metrics.json", results[-1])
    if len(results) > 1:
        write_json(folder / "steps.json", results)
    if evaluations[-1].detection:
        draw_comparison(results[-1], folder / "comparison.png")
        if len(results) > 1:
            draw_steps(results, folder / "steps.png")
    return evaluations


def evaluate_checkpoint(run: Path, description: RunDescription, checkpoint: Checkpoint, held_out: HeldOut) -> Candidate:
    """Computes the numbers of the paper's analysis for one checkpoint."""
    model = load_checkpoint(description, checkpoint).to(held_out.device)
    observed = observe(model, held_out.batches(), held_out.device)
    found = analyze(observed)
    if observed.under and held_out.oracle_sequences:
        assert isinstance(model, Detection)
        batches = held_out._replace(sequences=held_out.oracle_sequences).batches()
        found["oracle_distance"] = oracle_distance(model, batches)
    numbers = as_json(found)
    result = {
        "run": str(run),
        "objective": description.run.objective.name,
        "step": checkpoint.step,
        "sequences": held_out.sequences,
        "unigram_entropy": held_out.unigram_entropy(),
        **observed.metrics,
        **numbers,
    }
    if observed.under:
        result["originals_drawn"] = 1 - float(observed.under["p_G"].sampled_other.mean())
        result |= headline(numbers) | {"paper": PAPER}
    sums = {name: sequence_sums(seen.judgment) for name, seen in observed.under.items()}
    return Candidate(str(run), description, checkpoint, result, observed.tokens, found.get("detection", {}), sums)


def cross_runs(evaluations: list[list[Candidate]], held_out: HeldOut, folder: Path) -> None:
    """Crosses the runs at each step evaluated for all; writes `crossing.json` and `crossing.npz`, prints its tables.

    Without such a step, crosses the evaluated checkpoints if there is one per run.
    """
    common = set.intersection(*({part.checkpoint.step for part in parts} for parts in evaluations))
    crossed_at = [
        [part for parts in evaluations for part in parts if part.checkpoint.step == step] for step in sorted(common)
    ]
    if not common and all(len(parts) == 1 for parts in evaluations):
        crossed_at = [[part for (part,) in evaluations]]
    if not crossed_at:
        print("the runs have no evaluated step in common and are not crossed; choose --steps that all runs have")
        return
    entries = [entry for parts in crossed_at for entry in cross(parts, held_out.batches, held_out.device)]
    crossed = crossing(entries, held_out.sequences)
    write_json(folder / "crossing.json", crossed)
    with io.BytesIO() as sums:
        np.savez_compressed(sums, sums=np.stack([entry.sums_CS for entry in entries]))
        write_atomically(folder / "crossing.npz", sums.getvalue())
    print(tables(crossed))


def one_line(result: dict[str, Any]) -> str:
    """Summarizes the result of one checkpoint in one line."""
    parts = [f"MLM loss {result['mlm_loss']:.3f}, accuracy {result['mlm_accuracy']:.3f}"]
    if "detection" in result:
        if result["discriminator_entropy"] > 0:  # some token was replaced
            share = result["discriminator_loss"] / result["discriminator_entropy"]
            parts.append(f"L_D / entropy of the replaced share {share:.3f}")
        if known := [f"{name} {r:.3f}" for name, r in result["estimate_correlation"].items() if r is not None]:
            parts.append(f"correlation of the estimate {', '.join(known)}")
    return "; ".join(parts)
