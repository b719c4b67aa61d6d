"""Pre-train ELECTRA with learned replacement sampling; the same command again resumes.

deepspeed --hostfile hostfiles/16v100 pretrain/run.py --preset base
deepspeed --num_gpus 2 pretrain/run.py --preset tiny
python pretrain/run.py --dry_run
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from foundation.command_line import EXIT_BAD_USAGE, print_problems, run_command
from foundation.config import ConfigError
from pretrain.job.hostfile import require_launch
from pretrain.job.launcher import adopt_slurm
from pretrain.training.plan import Plan, RunOptions, launched_processes, make_plan

if TYPE_CHECKING:
    from torch.nn import Module

    from pretrain.job.processes import World
    from pretrain.job.watchdog import Watchdog
    from pretrain.training.startup import Startup
    from pretrain.training.train import Training


def main(options: RunOptions) -> int:
    adopt_slurm()
    if not options.dry_run:
        require_launch(options.hostfile, launched_processes())
    plan = make_plan(options)
    if options.dry_run:
        from pretrain.training.dry_run import dry_run

        dry_run(plan, options.hostfile)
        return 0

    from pretrain.job.processes import leave, start_processes
    from pretrain.job.rank_log import keep_rank_log
    from pretrain.job.watchdog import Watchdog
    from pretrain.training.run_folder import require_free, writing
    from pretrain.training.startup import Startup
    from pretrain.training.train import train

    startup = Startup()
    require_free(plan.folder)  # before the ranks meet: the run that goes on there may have the port
    world = start_processes()
    startup.done("meeting")
    lock = take_folder(plan, world)
    with Watchdog(world, options.hang_timeout, plan.folder) as watchdog:
        with writing(plan.folder):
            keep_rank_log(plan.folder, world.rank)
        with lock:
            code = train(build_training(plan, world, watchdog, startup, options.compile))
        watchdog.record("stopped" if code else "done", code, f"ended with exit code {code}")
        return leave(code)


def take_folder(plan: Plan, world: "World") -> AbstractContextManager[object]:
    """The run folder's lock, which the first rank holds; where it is refused, every rank ends together. Collective."""
    from pretrain.job.processes import leave
    from pretrain.training.run_folder import lock_run

    lock: AbstractContextManager[object] = nullcontext()
    problems: tuple[str, ...] = ()
    if world.is_first:
        try:
            lock = lock_run(plan.folder, plan.description)
        except ConfigError as error:
            problems = error.problems
            print_problems(problems)
    if world.share(problems):
        leave(EXIT_BAD_USAGE)
    return lock


def build_training(
    plan: Plan, world: "World", watchdog: "Watchdog", startup: "Startup", compiled: bool = False
) -> "Training":
    """The model under its engine, the data's plan and the run folder, ready to train; says what it is. Collective."""
    from pretrain.data.batches import BatchPlan
    from pretrain.engine.engine import Engine
    from pretrain.engine.optim import parameter_groups
    from pretrain.training.models import compile_layers, empty_model, initial_model
    from pretrain.training.run_folder import write_run, writing
    from pretrain.training.train import Training

    model = initial_model(plan.description) if world.is_first else empty_model(plan.description)
    if world.is_first:
        announce(plan, model, world)
    if compiled:
        compile_layers(model)
    groups = parameter_groups(model, plan.run.optim.weight_decay)
    startup.done("model")
    engine = Engine(model, groups, plan.deepspeed, world)
    write_folder = partial(write_run, plan.folder, plan.description, plan.deepspeed.json)
    if world.is_first:
        with writing(plan.folder):
            write_folder()
    engine.barrier()
    startup.done("engine")
    batch_plan = BatchPlan(plan.run.batch_size, plan.deepspeed.micro_batch_size, world.world_size, world.rank)
    return Training(
        plan.run, engine, plan.shards, plan.held_out, batch_plan, plan.folder, watchdog, write_folder, startup
    )


def announce(plan: Plan, model: "Module", world: "World") -> None:
    """Prints what is about to run, and what of it was probably not meant."""
    from pretrain.training.doubts import doubts

    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(plan, flush=True)
    for doubt in doubts(plan, parameters, on_gpus=world.device.type == "cuda"):
        print(f"WARNING: {doubt}", flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main, RunOptions, __doc__))
