"""The start of pre-training, from the options to the first step, in the order in which it happens."""

from contextlib import nullcontext, suppress

import torch

from electra_sampler.foundation.config import ConfigError, refuse
from pretrain.data.batches import BatchPlan, TrainingBatches
from pretrain.engine.checkpoint import all_valid, any_saved
from pretrain.engine.engine import Engine
from pretrain.engine.hardware import compute_deterministically, require_same_precision
from pretrain.engine.optim import parameter_groups
from pretrain.job.launcher import adopt_slurm
from pretrain.job.processes import World, leave, start_processes
from pretrain.job.rank_log import keep_rank_log
from pretrain.job.watchdog import Watchdog
from pretrain.planning.dry_run import dry_run
from pretrain.planning.estimates import Machine
from pretrain.planning.hosts import require_launch
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import Plan, list_settings, make_plan
from pretrain.planning.plan_warnings import plan_warnings, unconfirmed_days
from pretrain.runs.folder import CHECKPOINTS, lock_run, require_free, write_run, writing
from pretrain.runs.log import LEGEND, RECORDS
from pretrain.runs.models import compile_layers, empty_model, initial_state
from pretrain.training.train import Training


def start(options: RunOptions) -> int:
    """Lists the settings, makes a dry run, or trains as one rank of the job."""
    adopt_slurm()
    if options.list_settings:
        print(list_settings(options))
        return 0
    if options.hostfile and not options.dry_run:
        require_launch(options.hostfile)
    plan = make_plan(options)
    if options.dry_run:
        dry_run(plan, options.hostfile)
        return 0
    return train_rank(plan)


def train_rank(plan: Plan) -> int:
    """Trains as one rank of the job: joins the other ranks, trains, and exits the process. Collective."""
    if plan.run.deterministic and torch.cuda.is_available():
        compute_deterministically()
    require_free(plan.folder)  # before the ranks meet: a run that still trains there may hold the port
    world = start_processes()
    machine = measured_machine(plan, world)
    if world.share(world.is_first and is_finished(plan)):
        if world.is_first:
            print(f"already done: {plan.run.optim.steps:,} steps; see {plan.folder}", flush=True)
        return leave(0)
    lock = world.on_first(lambda: lock_run(plan.folder, plan.description)) or nullcontext()
    with Watchdog(world, plan.here.options.hang_timeout, plan.folder) as watchdog:
        with writing(plan.folder):
            keep_rank_log(plan.folder, world.rank)
        with lock:
            code = build_training(plan, machine, world, watchdog).train()
        watchdog.record("stopped" if code else "done", code, f"ended with exit code {code}")
        return leave(code)


def is_finished(plan: Plan) -> bool:
    """Returns whether the run folder holds an intact checkpoint of the last step."""
    with suppress(ConfigError):  # said when the run resumes
        return any(all_valid(plan.folder / CHECKPOINTS, lambda line: None, lambda step: step == plan.run.optim.steps))
    return False


def measured_machine(plan: Plan, world: World) -> Machine:
    """Returns the machine with the measured speed of all ranks together. Collective.

    Raises:
        ConfigError: on every rank, if the ranks differ in precision, or a new run would take days without a GPU (see
            `unconfirmed_days`).
    """
    require_same_precision(plan.here.deepspeed.precision, world)
    machine = plan.machine(world)
    refuse(world.share([*unconfirmed_days(plan, machine)]))
    return machine


def build_training(plan: Plan, machine: Machine, world: World, watchdog: Watchdog) -> Training:
    """Builds model, engine, batch plan and run folder; prints the plan and its warnings. Collective."""
    if world.is_first:
        print(plan, *([] if plan.started else [f"{LEGEND}{plan.folder / RECORDS}"]), sep="\n", flush=True)
    initial = world.on_first(
        lambda: initial_state(plan.description, plan.donors, resumes=any_saved(plan.folder / CHECKPOINTS))
    )
    model, state = initial or (empty_model(plan.description), None)
    if world.is_first:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        for warning in plan_warnings(plan, parameters, machine):
            print(f"WARNING: {warning}", flush=True)
    if plan.here.options.compile:
        compile_layers(model)
    groups = parameter_groups(model, plan.run.optim.weight_decay, plan.run.optim.betas, muon=plan.run.optim.muon)
    engine = Engine(model, groups, plan.here.deepspeed, world, few_shapes=True)
    if world.share(state is not None):
        engine.load_full_state(state)
    world.on_first(lambda: write_run(plan.folder, plan.description, plan.here.deepspeed.json))
    own = BatchPlan(plan.run.batch_size, plan.here.deepspeed.micro_batch_size, world.world_size, world.rank)
    batches = TrainingBatches(plan.shards, own, plan.run.seed, plan.run.mask_rate)
    return Training(plan, machine, engine, batches, watchdog)
