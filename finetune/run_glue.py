"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on GLUE.

    deepspeed finetune/run_glue.py --model OUT --task CoLA RTE --data_dir GLUE
    python finetune/run_glue.py --model OUT --task all --data_dir hub

One launch runs every task and seed, one after another; several at once, such as a Slurm array, share them. A finished
run is a line of OUTPUT/results.jsonl, and the same command again does only what is not there yet. Tables:
finetune/report.py.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import cast

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from finetune.config import GlueConfig, GlueOptions
from finetune.glue.files import load_task, missing_from
from finetune.glue.tasks import TASKS, GlueTask, select_tasks
from finetune.presets import settings_for
from foundation.command_line import run_command
from foundation.config import ConfigError
from foundation.files import require_folder


def main(options: GlueOptions) -> None:
    code = run_queue(options)
    from pretrain.job.processes import leave

    leave(code)


def run_queue(options: GlueOptions) -> int:
    """Runs what the options ask for and the output folder does not have yet; returns the exit code.

    Raises:
        ConfigError: a wrong task, model, file or setting; all data is read before the first run.
    """
    require_folder(options.output)
    tasks = present(select_tasks(options.task), options)
    from finetune.glue.job import make_job
    from finetune.running.model_folder import open_model, plan_runs
    from finetune.running.run_list import run_unfinished

    model = open_model(options.model)
    data = {task.name: load_task(task, options.data_dir, tests=options.predict_test) for task in tasks}
    planned = []
    for task in tasks:
        idle = {"both_orders": not task.unordered, "plain_scores": bool(task.classes)}  # here they change no run
        given = {name: value for name, value in options.overrides().items() if not idle.get(name)}
        settings = partial(settings_for, task.name)
        planned += plan_runs(options, model, task.name, data[task.name].fingerprint(), settings, given)
    return run_unfinished(
        planned,
        lambda run: make_job(TASKS[run.task], data[run.task], model.tokenizer, cast(GlueConfig, run.settings)),
        {name: list(examples.tests_by_path()) for name, examples in data.items()},
        model,
        options,
        options.output,
    )


def present(tasks: list[GlueTask], options: GlueOptions) -> list[GlueTask]:
    """All tasks asked for by name; of `all`, those that the data folder has, the others named in a line each.

    Raises:
        ConfigError: `all`, and not one is there.
    """
    if "all" not in options.task:
        return tasks
    missing = {task.name: problem for task in tasks if (problem := missing_from(task, options.data_dir))}
    if len(missing) == len(tasks):
        raise ConfigError(f"data_dir: {options.data_dir} has no task of GLUE; expected folders such as CoLA in it")
    for name, problem in missing.items() if os.environ.get("RANK", "0") == "0" else ():
        print(f"{name} is left out: {problem}", flush=True)
    return [task for task in tasks if task.name not in missing]


if __name__ == "__main__":
    sys.exit(run_command(main, GlueOptions, __doc__))
