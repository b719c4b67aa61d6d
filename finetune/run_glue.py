"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on GLUE.

    deepspeed finetune/run_glue.py --model OUT --task CoLA RTE --data_dir GLUE
    python finetune/run_glue.py --model OUT --task all --data_dir hub

One launch runs every task and seed. A finished run is a line of OUTPUT/results.jsonl, and the same command
again runs only what is not there yet. Tables: finetune/report.py.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data_prep.command_line import run_command
from finetune.config import GlueOptions
from finetune.presets import settings_for, size_of
from finetune.records import FILE_NAME, RunIdentity, RunRecord, append_record, read_records
from finetune.tasks.glue import TASKS, TaskData, load_task, select_tasks

if TYPE_CHECKING:
    from finetune.model_folder import ModelFolder
    from finetune.train import Inputs, Outcome
    from pretrain.processes import World


def main(options: GlueOptions) -> None:
    run_queue(options)
    from pretrain.processes import leave

    leave(0)


def run_queue(options: GlueOptions) -> None:
    """Runs what the options ask for and the output folder does not have yet.

    Raises:
        ConfigError: a wrong task, model, file or setting; all data is read before the first run.
    """
    tasks = select_tasks(options.task)
    from finetune.model_folder import open_model

    model = open_model(options.model)
    data = {task.name: load_task(task, options.data_dir) for task in tasks}
    runs = plan(options, model, data)
    from finetune.train import train
    from pretrain.processes import start_processes

    world = start_processes()
    results = options.output / FILE_NAME
    waiting = world.share(unfinished(runs, results) if world.is_first else None)
    if world.is_first:
        print(f"{len(waiting)} of {len(runs)} runs to do, results in {results}", flush=True)
    inputs: Inputs | None = None
    for run in (runs[place] for place in waiting):
        if inputs is None or inputs.task.name != run.task:
            inputs = prepare(run, model, data[run.task])
        started = time.monotonic()
        outcome = train(model.path, run.random_weights, inputs, run.settings, run.seed, options.deepspeed_config, world)
        if world.is_first:
            seconds = time.monotonic() - started
            append_record(results, make_record(options.model, model, run, inputs, outcome, seconds, world))


def plan(options: GlueOptions, model: "ModelFolder", data: dict[str, TaskData]) -> list[RunIdentity]:
    """Every run asked for, task by task.

    Raises:
        ConfigError: a setting out of range.
    """
    runs = []
    for name, examples in data.items():
        settings = settings_for(
            name, model.config.hidden_size, model.config.max_position_embeddings, options.overrides()
        )
        first = RunIdentity(
            task=name,
            seed=options.seeds[0],
            model_sha256=model.sha256,
            random_weights=options.random_weights,
            data_sha256=examples.fingerprint(),
            settings=settings,
        )
        runs += [first.model_copy(update={"seed": seed}) for seed in dict.fromkeys(options.seeds)]
    return runs


def unfinished(runs: list[RunIdentity], results: Path) -> list[int]:
    """Places in `runs` of those that the results file lacks."""
    done = [record.run for record in read_records(results)]
    return [place for place, run in enumerate(runs) if run not in done]


def prepare(run: RunIdentity, model: "ModelFolder", data: TaskData) -> "Inputs":
    """A task's examples as token ids."""
    from finetune.features import tokenize_examples
    from finetune.train import Inputs

    length = run.settings.max_length
    return Inputs(
        TASKS[run.task],
        tokenize_examples(data.train, model.tokenizer, length),
        {split: tokenize_examples(examples, model.tokenizer, length) for split, examples in data.dev.items()},
        model.tokenizer.pad_token_id,
    )


def make_record(
    name: str,
    model: "ModelFolder",
    run: RunIdentity,
    inputs: "Inputs",
    outcome: "Outcome",
    seconds: float,
    world: "World",
) -> RunRecord:
    """The line that is kept of a run."""
    return RunRecord(
        run=run,
        model=name,
        model_size=size_of(model.config.hidden_size),
        train_examples=len(inputs.train.targets),
        seconds=round(seconds, 2),
        world_size=world.world_size,
        **outcome._asdict(),
    )


if __name__ == "__main__":
    sys.exit(run_command(main, GlueOptions, __doc__))
