"""The runs of one launch: what is asked for, what is done already, and the rest one after another.

A finished run is a line of OUTPUT/results.jsonl; its answers, where its task keeps them, lie in OUTPUT/predictions.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from finetune.config import FinetuneOptions
from finetune.job import Job
from finetune.model_folder import ModelFolder
from finetune.presets import size_of
from finetune.records import FILE_NAME, RunIdentity, RunRecord, append_record, read_records, write_files
from finetune.train import Outcome, train
from pretrain.processes import World, start_processes

PREDICTIONS = "predictions"

PLAIN_DEEPSPEED_CONFIG = Path(__file__).resolve().parents[1] / "ds_configs" / "zero0_fp32.json"
"""Where none is named: the models fit one machine, and fp32 runs on all of them."""


def run_unfinished(
    tasks: Iterable[RunIdentity],
    make_job: Callable[[RunIdentity], Job],
    model: ModelFolder,
    options: FinetuneOptions,
    output: Path,
) -> None:
    """Runs each of `tasks` with every seed of the options, but for what the output folder has."""
    runs = [task.model_copy(update={"seed": seed}) for task in tasks for seed in dict.fromkeys(options.seeds)]
    world = start_processes()
    results = output / FILE_NAME
    waiting = world.share(unfinished(runs, results) if world.is_first else None)
    if world.is_first:
        print(f"{len(waiting)} of {len(runs)} runs to do, results in {results}", flush=True)
    deepspeed_config = options.deepspeed_config or PLAIN_DEEPSPEED_CONFIG
    job, task = None, None
    for run in (runs[place] for place in waiting):
        if job is None or task != run.model_copy(update={"seed": None}):
            job, task = make_job(run), run.model_copy(update={"seed": None})
        started = time.monotonic()
        outcome = train(model.path, run.random_weights, job, run.settings, run.seed, deepspeed_config, world)
        if world.is_first:
            seconds = time.monotonic() - started
            write_files(output / PREDICTIONS / run.folder_name(), outcome.files)
            append_record(results, make_record(options.model, model, run, job, outcome, seconds, world))


def unfinished(runs: Sequence[RunIdentity], results: Path) -> list[int]:
    """Places in `runs` of those that the results file lacks."""
    done = [record.run for record in read_records(results)]
    return [place for place, run in enumerate(runs) if run not in done]


def make_record(
    name: str, model: ModelFolder, run: RunIdentity, job: Job, outcome: Outcome, seconds: float, world: World
) -> RunRecord:
    """The line that is kept of a run."""
    return RunRecord(
        run=run,
        model=name,
        model_size=size_of(model.config.hidden_size),
        train_examples=job.train_examples,
        seconds=round(seconds, 2),
        world_size=world.world_size,
        **{key: value for key, value in outcome._asdict().items() if key != "files"},
    )
