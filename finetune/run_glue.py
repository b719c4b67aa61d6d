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
from finetune.presets import paper_grid, settings_for
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
    planned = [run for name, examples in data.items() for run in plan(options, model, name, examples)]
    from finetune.glue_job import make_job
    from finetune.run_list import run_unfinished

    def prepare(run: RunIdentity) -> "GlueJob":
        return make_job(TASKS[run.task], data[run.task], model.tokenizer, run.settings)

    run_unfinished(planned, prepare, model, options, options.output)


def plan(options: GlueOptions, model: "ModelFolder", task: str, data: TaskData) -> list[RunIdentity]:
    """What is asked for on one task, each setting with the first seed.

    Raises:
        ConfigError: a setting out of range.
    """
    hidden_size, positions = model.config.hidden_size, model.config.max_position_embeddings
    points = paper_grid(task, hidden_size) if options.grid else [{}]
    wanted = [settings_for(task, hidden_size, positions, point | options.overrides()) for point in points]
    first = RunIdentity(
        task=task,
        seed=options.seeds[0],
        model_sha256=model.sha256,
        random_weights=options.random_weights,
        data_sha256=data.fingerprint(),
        settings=wanted[0],
    )
    return [first.model_copy(update={"settings": settings}) for settings in dict.fromkeys(wanted)]


if __name__ == "__main__":
    sys.exit(run_command(main, GlueOptions, __doc__))
