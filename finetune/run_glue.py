"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on GLUE.

    deepspeed finetune/run_glue.py --model OUT --task CoLA RTE --data_dir GLUE
    python finetune/run_glue.py --model OUT --task all --data_dir hub

One launch runs every task and seed, one after another; several at once, such as a Slurm array, share them. A finished
run is a line of OUTPUT/results.jsonl, and the same command again does only what is not there yet. Tables:
finetune/report.py.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from finetune.config import GlueConfig, GlueOptions
from finetune.glue.files import load_task, missing_from
from finetune.glue.tasks import TASKS, Task, TaskData, select_tasks
from finetune.presets import paper_grid, settings_for
from finetune.running.records import RunIdentity
from foundation.command_line import run_command
from foundation.config import ConfigError

if TYPE_CHECKING:
    from finetune.glue.job import GlueJob
    from finetune.running.model_folder import ModelFolder


def main(options: GlueOptions) -> None:
    code = run_queue(options)
    from pretrain.job.processes import leave

    leave(code)


def run_queue(options: GlueOptions) -> int:
    """Runs what the options ask for and the output folder does not have yet; returns the exit code.

    Raises:
        ConfigError: a wrong task, model, file or setting; all data is read before the first run.
    """
    from foundation.files import require_folder

    require_folder(options.output)
    tasks = present(select_tasks(options.task), options)
    from finetune.running.model_folder import open_model

    model = open_model(options.model)
    data = {task.name: load_task(task, options.data_dir, tests=options.predict_test) for task in tasks}
    planned = [run for task in tasks for run in plan(options, model, task, data[task.name])]
    from finetune.glue.job import make_job
    from finetune.running.run_list import run_unfinished

    def prepare(run: RunIdentity) -> "GlueJob":
        assert isinstance(run.settings, GlueConfig)
        return make_job(TASKS[run.task], data[run.task], model.tokenizer, run.settings)

    files = {name: list(examples.tests_by_path()) for name, examples in data.items()}
    return run_unfinished(planned, prepare, files, model, options, options.output)


def present(tasks: list[Task], options: GlueOptions) -> list[Task]:
    """All tasks asked for by name; of `all`, those that the data folder has, the others named in a line each.

    Raises:
        ConfigError: `all`, and not one is there.
    """
    if "all" not in options.task:
        return tasks
    missing = {task.name: missing_from(task, options.data_dir) for task in tasks}
    if all(missing.values()):
        raise ConfigError(f"data_dir: {options.data_dir} has no task of GLUE; expected folders such as CoLA in it")
    if os.environ.get("RANK", "0") == "0":
        for name, problem in missing.items():
            if problem:
                print(f"{name} is left out: {problem}", flush=True)
    return [task for task in tasks if missing[task.name] is None]


def plan(options: GlueOptions, model: "ModelFolder", task: Task, data: TaskData) -> list[RunIdentity]:
    """What is asked for on one task, each setting with the first seed.

    Raises:
        ConfigError: a setting out of range.
    """
    hidden_size, positions = model.config.hidden_size, model.config.max_position_embeddings
    points = paper_grid(task.name, hidden_size) if options.grid else [{}]
    given = options.overrides()
    if not task.unordered:
        given.pop("both_orders", None)  # says nothing about this task: not another run
    if task.classes:
        given.pop("plain_scores", None)
    wanted = [settings_for(task.name, hidden_size, positions, point | given) for point in points]
    first = RunIdentity(
        task=task.name,
        seed=options.seeds[0],
        model_sha256=model.sha256,
        random_weights=options.random_weights,
        data_sha256=data.fingerprint(),
        settings=wanted[0],
    )
    return [first.model_copy(update={"settings": settings}) for settings in dict.fromkeys(wanted)]


if __name__ == "__main__":
    sys.exit(run_command(main, GlueOptions, __doc__))
