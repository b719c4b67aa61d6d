"""Builds a run from its plan: locks the run folder, puts the model under its engine, plans the batches."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from foundation.command_line import EXIT_BAD_USAGE, print_problems
from foundation.config import ConfigError
from pretrain.data.batches import BatchPlan
from pretrain.data.remote import CACHE
from pretrain.engine.engine import Engine
from pretrain.engine.hardware import require_same_precision
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import World, leave
from pretrain.job.watchdog import Watchdog
from pretrain.method.objective import Objective
from pretrain.training.doubts import doubts, unasked_months
from pretrain.training.log_line import LEGEND
from pretrain.training.machines import Machine, machine_of
from pretrain.training.models import compile_layers, empty_model, initial_state
from pretrain.training.plan import Plan
from pretrain.training.run_folder import CHECKPOINTS, lock_run, write_run, writing
from pretrain.training.run_log import RECORDS


class Training(NamedTuple):
    """The parts of a run that is ready to train."""

    plan: Plan
    machine: Machine
    engine: Engine[Objective]
    batches: BatchPlan
    watchdog: Watchdog


def take_folder(plan: Plan, world: World) -> AbstractContextManager[object]:
    """Locks the run folder on the first rank and returns the lock; if that fails, every rank exits. Collective."""
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


def measured_machine(plan: Plan, world: World) -> Machine:
    """Measures the speed of all ranks' products. Collective.

    Raises:
        ConfigError: on every rank, if the ranks differ in precision, or the run would take months unasked.
    """
    require_same_precision(plan.deepspeed.precision, world)
    machine = machine_of(plan, world)
    if problems := world.share([*unasked_months(plan, machine)]):
        raise ConfigError(*problems)
    return machine


def build_training(plan: Plan, machine: Machine, world: World, watchdog: Watchdog, compiled: bool = False) -> Training:
    """Builds model, engine, batch plan and run folder; prints the plan and its warnings. Collective."""
    if world.is_first:
        print(plan, *([] if plan.started else [f"{LEGEND}{plan.folder / RECORDS}"]), sep="\n", flush=True)
        resumes = any((plan.folder / CHECKPOINTS).glob("step-*[0-9]"))  # intact or not
        model, state = initial_state(plan.description, resumes)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        for doubt in doubts(plan, parameters, machine):
            print(f"WARNING: {doubt}", flush=True)
    else:
        model, state = empty_model(plan.description), None
    if compiled:
        compile_layers(model)
    groups = parameter_groups(model, plan.run.optim.weight_decay)
    engine = Engine(model, groups, plan.deepspeed, world)
    if world.share(state is not None):
        engine.load_full_state(state)
    if world.is_first:
        with writing(plan.folder):
            write_run(plan.folder, plan.description, plan.deepspeed.json)
    engine.barrier()
    CACHE.on_wait = watchdog.waits
    batches = BatchPlan(plan.run.batch_size, plan.deepspeed.micro_batch_size, world.world_size, world.rank)
    return Training(plan, machine, engine, batches, watchdog)
