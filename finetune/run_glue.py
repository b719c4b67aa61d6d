"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on GLUE.

    deepspeed finetune/run_glue.py --model OUT --task CoLA RTE --data_dir GLUE
    python finetune/run_glue.py --model OUT --task all --data_dir hub

One launch runs every task and seed. A finished run is a line of OUTPUT/results.jsonl, and the same command
again runs only what is not there yet. Tables: finetune/report.py.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data_prep.command_line import run_command
from finetune.config import GlueOptions
from finetune.presets import settings_for
from finetune.records import RunIdentity
from finetune.tasks.glue import TASKS, TaskData, load_task, select_tasks

if TYPE_CHECKING:
    from finetune.glue_job import GlueJob
    from finetune.model_folder import ModelFolder


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
    planned = [plan(options, model, name, examples) for name, examples in data.items()]
    from finetune.run_list import run_unfinished

    run_unfinished(planned, lambda run: prepare(run, model, data[run.task]), model, options, options.output)


def plan(options: GlueOptions, model: "ModelFolder", task: str, data: TaskData) -> RunIdentity:
    """What is asked for on one task, with the first seed.

    Raises:
        ConfigError: a setting out of range.
    """
    shape = model.config
    return RunIdentity(
        task=task,
        seed=options.seeds[0],
        model_sha256=model.sha256,
        random_weights=options.random_weights,
        data_sha256=data.fingerprint(),
        settings=settings_for(task, shape.hidden_size, shape.max_position_embeddings, options.overrides()),
    )


def prepare(run: RunIdentity, model: "ModelFolder", data: TaskData) -> "GlueJob":
    """A task's examples as token ids."""
    from finetune.features import tokenize_examples
    from finetune.glue_job import GlueJob

    length = run.settings.max_length
    return GlueJob(
        TASKS[run.task],
        tokenize_examples(data.train, model.tokenizer, length),
        {split: tokenize_examples(examples, model.tokenizer, length) for split, examples in data.dev.items()},
        model.tokenizer.pad_token_id,
    )


if __name__ == "__main__":
    sys.exit(run_command(main, GlueOptions, __doc__))
