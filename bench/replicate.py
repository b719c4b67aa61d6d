"""The paper's comparison at small scale: four objectives with the same text, steps, seeds, evaluation and fine-tuning.

    python bench/replicate.py --input "TEXT/*.xz" --data_dir GLUE [--punkt FOLDER] [--seeds 0 1 2] [--steps 3000]

Runs the commands a user would type, one per GPU or core at a time; rerun it to resume. The results are
`OUTPUT/replication.md` and `.png` (`bench/replication.py`): read the verdict on each of the paper's claims.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from bench.replication import METHODS, run_name
from foundation.command_line import run_command
from foundation.config import StrictConfig
from pretrain.presets import PRESETS

REPOSITORY = Path(__file__).resolve().parents[1]

# Chosen here: with these sizes, the tiny preset passes both gates within minutes (docs/evidence/replication.md).
VOCAB_SIZE, SEQ_LENGTH = 4096, 64
CHECKPOINTS = 6  # kept per run, evenly spaced, for figures over steps
PROBE_SEEDS = "1 2 3 4 5"  # as in the paper, which reports medians of five
PROBES = {
    # a model as narrow as tiny learns nothing at the paper's learning rate of 3e-4 (docs/evidence/results.md)
    "CoLA": "--epochs 5 --learning_rate 1e-3",
    "SST-2": "--epochs 1 --learning_rate 1e-3 --batch_size 128",
}


class ReplicateOptions(StrictConfig):
    """The command line of the replication."""

    input: tuple[str, ...] = ("data/raw",)
    """text files, as for build_shards.py"""
    punkt: Path | None = None
    """folder of a Punkt model (default: learn one)"""
    data_dir: Path = Path("data/glue")
    """folder holding CoLA and SST-2"""
    output: Path = Path("runs/replication")
    """folder for everything that is made"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """pre-training seeds; every method runs with each"""
    steps: int = Field(default=3000, gt=PRESETS["tiny"].run.optim.warmup_steps)
    """optimizer steps of each run"""
    jobs: int | None = Field(default=None, ge=1)
    """commands to run at a time (default: one per GPU, or per core)"""


class Job(NamedTuple):
    """One command; its output goes to `OUTPUT/logs/NAME.log`."""

    name: str
    command: str
    product: Path | None = None
    """Its final result: if it exists, the command is skipped. Commands without one check for themselves."""


def main(options: ReplicateOptions) -> int:
    """Runs the phases one after another; returns 1 after a phase in which a command failed."""
    from bench.replication_report import write_report

    os.chdir(REPOSITORY)
    jobs = options.jobs or _devices()
    for phase in phases(options):
        waiting = [job for job in phase if not (job.product and job.product.exists())]
        with ThreadPoolExecutor(jobs) as pool:
            codes = list(pool.map(lambda numbered: run_job(options.output, *numbered, jobs), enumerate(waiting)))
        if any(codes):
            return 1
    write_report(options.output, options.seeds)
    print((options.output / "replication.md").read_text())
    return 0


def phases(options: ReplicateOptions) -> Iterator[list[Job]]:
    """Yields the commands, in groups that may run at the same time."""
    output = shlex.quote(str(options.output))
    text = " ".join(shlex.quote(name) for name in options.input)
    punkt = f" --punkt {shlex.quote(str(options.punkt))}" if options.punkt else ""
    pairs = [(method, seed) for seed in options.seeds for method in METHODS]
    vocabulary = f"python data_prep/train_vocab.py --input {text} --output {output}/vocab --size {VOCAB_SIZE}"
    yield [Job("vocabulary", vocabulary, options.output / "vocab" / "vocab.txt")]
    yield [
        Job(
            "shards",
            f"python data_prep/build_shards.py --input {text} --output {output}/shards --vocab {output}/vocab{punkt}"
            f" --seq_length {SEQ_LENGTH}",
        )
    ]
    yield [train_job(options, output, method, seed) for method, seed in pairs]
    yield [evaluate_job(options, output, seed) for seed in options.seeds]
    runs = [run_name(method, seed) for method, seed in pairs]
    yield [export_job(options, output, run) for run in runs]
    yield [probe_job(options, output, run, task) for run in runs for task in PROBES]


def train_job(options: ReplicateOptions, output: str, method: str, seed: int) -> Job:
    """Pre-trains one method with one seed, which fixes initial weights, order and masks for all methods."""
    every = options.steps // CHECKPOINTS
    return Job(
        f"train-{run_name(method, seed)}",
        f"python pretrain/run.py --preset tiny --data {output}/shards --output {output}/runs/{run_name(method, seed)}"
        f" --row {shlex.quote(METHODS[method].row)} --set seed={seed} optim.steps={options.steps}"
        f" checkpoint_every={every} keep_checkpoints={CHECKPOINTS} evaluate_every={every}"
        + "".join(f" {override}" for override in METHODS[method].overrides),
    )


def evaluate_job(options: ReplicateOptions, output: str, seed: int) -> Job:
    """Evaluates one seed's runs as in the paper, every discriminator with every sampler."""
    runs = " ".join(f"{output}/runs/{run_name(method, seed)}" for method in METHODS)
    return Job(
        f"evaluate-seed{seed}",
        f"python pretrain/evaluate.py {runs} --output {output}/evaluation/seed{seed}",
        options.output / "evaluation" / f"seed{seed}" / "crossing.json",
    )


def export_job(options: ReplicateOptions, output: str, run: str) -> Job:
    """Exports the discriminator as a folder that can be fine-tuned."""
    return Job(
        f"export-{run}",
        f"python pretrain/export.py {output}/runs/{run} {output}/exported/{run}",
        options.output / "exported" / run,
    )


def probe_job(options: ReplicateOptions, output: str, run: str, task: str) -> Job:
    """Fine-tunes one discriminator on one task with five seeds."""
    return Job(
        f"probe-{task}-{run}",
        f"python finetune/run_glue.py --model {output}/exported/{run} --task {task} --seeds {PROBE_SEEDS}"
        f" --data_dir {shlex.quote(str(options.data_dir))} --output {output}/probes/{run} {PROBES[task]}",
    )


def run_job(output: Path, number: int, job: Job, jobs: int) -> int:
    """Runs one command from the repository's folder with its output in a log; returns its exit code."""
    log = output / "logs" / f"{job.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{time.strftime('%H:%M:%S')} $ {job.command}", flush=True)
    started = time.monotonic()
    with log.open("a") as file:
        code = subprocess.run(
            shlex.split(job.command), env=_environment(number, jobs), stdout=file, stderr=file
        ).returncode
    minutes = (time.monotonic() - started) / 60
    print(f"{time.strftime('%H:%M:%S')} {job.name}: exit code {code} after {minutes:.1f} minutes", flush=True)
    if code:
        print(f"bench/replicate.py: {job.name} failed; see {log}", file=sys.stderr)
    return code


def _environment(number: int, jobs: int) -> dict[str, str]:
    """The environment of a job: this Python first on the path, and its share of the cores or one GPU."""
    import torch

    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    values = {"PATH": path, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    if torch.cuda.device_count():
        values["CUDA_VISIBLE_DEVICES"] = str(number % torch.cuda.device_count())
    return os.environ | values


def _devices() -> int:
    import torch

    return torch.cuda.device_count() or os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(run_command(main, ReplicateOptions, __doc__))
