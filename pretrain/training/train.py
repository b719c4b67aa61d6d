"""A run from its plan to its end: `train_rank` builds its parts, `run_steps` is the loop.

The loop decides when to step, report, evaluate, save and stop; `losses` runs the forwards.
"""

import time
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foundation.config import ConfigError
from foundation.locks import confirm
from foundation.ordering import key_of
from pretrain.data.batches import HELD_OUT_SEED, WEIGHTS_EVERY, Batch, BatchPlan, TrainingBatches, held_out_batches
from pretrain.data.remote import CACHE
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import NotSaved, all_valid, any_saved, save
from pretrain.engine.engine import Engine, Unread, accumulate, end_step, resume
from pretrain.engine.graphs import replay_micro_batches
from pretrain.engine.hardware import compute_deterministically, require_same_precision
from pretrain.engine.optim import UNSCALED, parameter_groups, without_bias_correction
from pretrain.job.processes import World, leave, start_processes
from pretrain.job.rank_log import keep_rank_log
from pretrain.job.stopping import EXIT_STOPPED, StopRequest
from pretrain.job.watchdog import Watchdog
from pretrain.method.electra import Sampler
from pretrain.method.objective import Objective
from pretrain.planning.estimates import Machine
from pretrain.planning.plan import Plan
from pretrain.planning.plan_warnings import plan_warnings, unasked_days
from pretrain.runs.folder import CHECKPOINTS, LOCK, lock_run, require_free, write_run, writing
from pretrain.runs.log import LEGEND, RECORDS
from pretrain.runs.models import compile_layers, empty_model, initial_state
from pretrain.training.mask_choice import MaskChoice
from pretrain.training.metrics import MetricTotals
from pretrain.training.state import TrainingState, due, require_finite
from pretrain.training.telemetry import Telemetry


class Training(NamedTuple):
    """The parts of a run that is ready to train."""

    plan: Plan
    machine: Machine
    engine: Engine[Objective]
    batches: TrainingBatches
    watchdog: Watchdog


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
    with Watchdog(world, plan.options.hang_timeout, plan.folder) as watchdog:
        with writing(plan.folder):
            keep_rank_log(plan.folder, world.rank)
        with lock:
            code = train(build_training(plan, machine, world, watchdog))
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
            `unasked_days`).
    """
    require_same_precision(plan.deepspeed.precision, world)
    machine = plan.machine(world)
    if problems := world.share([*unasked_days(plan, machine)]):
        raise ConfigError(*problems)
    return machine


def build_training(plan: Plan, machine: Machine, world: World, watchdog: Watchdog) -> Training:
    """Builds model, engine, batch plan and run folder; prints the plan and its warnings. Collective."""
    if world.is_first:
        print(plan, *([] if plan.started else [f"{LEGEND}{plan.folder / RECORDS}"]), sep="\n", flush=True)
    saved = plan.folder / CHECKPOINTS
    initial = world.on_first(lambda: initial_state(plan.description, plan.sources, any_saved(saved)))
    model, state = initial or (empty_model(plan.description), None)
    if world.is_first:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        for warning in plan_warnings(plan, parameters, machine):
            print(f"WARNING: {warning}", flush=True)
    if plan.options.compile:
        compile_layers(model)
    groups = parameter_groups(model, plan.run.optim.weight_decay, plan.run.optim.betas, muon=plan.run.optim.muon)
    engine = Engine(model, groups, plan.deepspeed, world, few_shapes=True)
    if world.share(state is not None):
        engine.load_full_state(state)
    world.on_first(lambda: write_run(plan.folder, plan.description, plan.deepspeed.json))
    CACHE.on_wait = watchdog.waits
    own = BatchPlan(plan.run.batch_size, plan.deepspeed.micro_batch_size, world.world_size, world.rank)
    batches = TrainingBatches(plan.shards, own, plan.run.seed, plan.run.mask_rate)
    return Training(plan, machine, engine, batches, watchdog)


def train(training: Training) -> int:
    """Resumes, then trains to the last step or to a stop request; returns the process's exit code."""
    plan, machine, engine, batches, _ = training
    state = resume(plan.folder / CHECKPOINTS, engine, TrainingState)
    choice = MaskChoice(plan.run.mask_choice, state, batches, engine.world) if plan.run.mask_choice else None
    with StopRequest(plan.folder) as stop, closing(Telemetry(plan, machine, engine, state.step)) as telemetry:
        if plan.graphs and state.step < plan.run.optim.steps:
            telemetry.begin(replayed=captures(training, state.step, telemetry))
        code = run_steps(training, state, telemetry, stop, choice)
    if engine.world.is_first:
        stop.withdraw(telemetry.say)
    return code


def captures(training: Training, step: int, telemetry: Telemetry) -> bool:
    """Captures a micro-batch as CUDA graphs; returns whether that succeeded, which only `--graphs on` demands."""
    engine, sample = training.engine, training.batches.step(step)[0]
    try:
        replay_micro_batches(engine, sample.to(engine.device, counts=True), telemetry.observe)
    except RuntimeError as error:
        if training.plan.options.graphs == "on":
            error.add_note("graphs: a micro-batch could not be captured; --graphs off trains without CUDA graphs")
            raise
        reason = str(error).partition("\n")[0]
        telemetry.say(f"WARNING: graphs: trains without CUDA graphs, slower, as a capture failed: {reason}")
        return False
    return True


def run_steps(
    training: Training, state: TrainingState, telemetry: Telemetry, stop: StopRequest, choice: MaskChoice | None
) -> int:
    """Runs the remaining steps with the reports, evaluations and saves due between them; returns the exit code."""
    plan, run, last = training.plan, training.plan.run, training.plan.run.optim.steps
    saved_at, first = time.monotonic(), state.step
    saves = run.checkpoint_every, run.keep_every or last

    def waits(where: str) -> None:
        """Reports a wait for a shard; ends it on request as long as there is no new step to save."""
        training.watchdog.waits(where)
        if stop and state.step == first:
            training.watchdog.record("stopped", EXIT_STOPPED, f"stopped on request while {where}")
            raise SystemExit(EXIT_STOPPED)

    CACHE.on_wait = waits

    def requests() -> tuple[bool, bool]:
        """Returns whether this rank requests to stop, and to save."""
        overdue = time.monotonic() - saved_at > 60 * run.checkpoint_minutes
        return bool(stop) or training.watchdog.launcher_gone, overdue

    def finish(step: Unread) -> bool:
        """Reads the outcome of a step and does what follows from it; returns whether the run shall stop."""
        nonlocal saved_at
        result, (loss, stopping, saving) = step.read()
        require_finite(result, loss, state.step + 1, training.batches, plan.folder)
        if warning := state.advance(result, loss):
            telemetry.say(warning)
        if choice is not None and state.step % WEIGHTS_EVERY == 0:
            choice.renew()
        telemetry.step_done(state, result)
        if plan.held_out is not None and due(run.evaluate_every, state.step, last):
            telemetry.write("held_out", state, evaluate(training, plan.held_out))
        training.watchdog.step_done(state.step)
        if stopping or saving or any(due(each, state.step, last) for each in saves):
            state.token_losses = [] if choice is None else choice.saved()
            save_state(training, state, telemetry, must=bool(stopping) or state.step == last)
            saved_at = time.monotonic()
        return bool(stopping) and state.step < last

    # The outcome of a step is read once the device has its next backward to compute, so that it never waits for the
    # host; at once only where something is due that needs it.
    every = (
        run.log_every,
        run.histogram_every,
        run.evaluate_every,
        *saves,
        *[WEIGHTS_EVERY] * bool(choice),
    )
    unread: Unread | None = None
    for micro_batches in telemetry.own_time.reading(training.batches.from_step(state.step, last)):
        telemetry.step = number = state.step + (unread is not None) + 1
        total = accumulate(training.engine, losses(training, number - 1, micro_batches, telemetry, choice))
        stops = unread is not None and finish(unread)
        if not stops:
            unread = end_step(
                training.engine,
                total,
                requests(),
                run.optim.rate(state.updates),
                UNSCALED
                if run.optim.adam_bias_correction
                else without_bias_correction(training.engine.adam_steps, run.optim.betas),
            )
            if any(due(each, number, last) for each in every):
                stops, unread = finish(unread), None
        if stops:
            telemetry.say(f"stopped on request after step {state.step}; run the same command to resume")
            return EXIT_STOPPED
    telemetry.say(f"done: {state.step} steps, {state.step - state.updates} skipped; see {plan.folder}")
    return 0


def losses(
    training: Training, step: int, micro_batches: list[Batch], telemetry: Telemetry, choice: MaskChoice | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Runs the forward of each of this rank's micro-batches of a step; yields the loss to differentiate, and its
    contribution to the step's mean loss.
    """
    engine = training.engine
    timed = telemetry.own_time.computing if engine.world.world_size > 1 else nullcontext  # read of several ranks only
    for number, batch in enumerate(micro_batches):
        torch.manual_seed(key_of(training.plan.run.seed, step, number, engine.world.rank))  # for dropout only
        training.watchdog.progress(f"reading the data of step {step + 1}")
        batch = batch.to(engine.device, counts=engine.device.type == "cuda")
        with timed():
            output = engine.forward(batch, entropies=telemetry.watching(step + 1))
        yield output.loss, output.loss.detach() / training.batches.plan.micro_batches
        telemetry.forward_done(batch, output)
        if choice is not None:
            choice.add(batch, output)


@torch.no_grad()
def evaluate(training: Training, held_out: Shards) -> dict[str, Any]:
    """Returns the metrics on held-out text, over all ranks. Collective.

    Where a sampler replaces p_G, also the accuracy of detection under both (paper, appendix).
    """
    engine, sequences = training.engine, training.plan.run.evaluate_sequences
    reported, under_p_G = MetricTotals(engine.device), MetricTotals(engine.device)
    engine.module.eval()
    for batch in held_out_batches(held_out, sequences, training.batches.plan, HELD_OUT_SEED):
        training.watchdog.progress("a batch of the evaluation")
        batch = batch.to(engine.device)
        reported.add(batch, engine.forward(batch, entropies=True), watched=True)
        if isinstance(engine.module, Sampler):
            from_p_G = engine.forward(batch, from_p_G=True)  # type: ignore[call-arg]  # as a Sampler's forward takes
            under_p_G.add(batch, from_p_G, watched=False)
    engine.module.train()
    values = reported.values(engine.world)
    if isinstance(engine.module, Sampler):
        of_p_G = under_p_G.values(engine.world)
        for name in ("accuracy_masked", "accuracy_all"):
            values[f"{name}_under"] = {"p_G": of_p_G[name], "p_S": values[name]}
    return values


def save_state(training: Training, state: TrainingState, telemetry: Telemetry, must: bool) -> None:
    """Saves a checkpoint of the current state; a failure is only a warning unless the checkpoint `must` be saved.

    Collective.

    Raises:
        NotSaved: on every rank, if the checkpoint could not be written and `must` is set.
        Lost: on the first rank, if another command has taken over the run folder.
    """
    engine, folder, run = training.engine, training.plan.folder, training.plan.run
    engine_state, problem = engine.full_state(), None
    if engine.world.is_first:
        confirm(folder / LOCK)
        try:
            saved = save(
                folder / CHECKPOINTS,
                state.step,
                engine_state,
                asdict(state),
                keep_last=run.keep_checkpoints,
                keep_every=run.keep_every,
                say=telemetry.say,
            )
            telemetry.say(f"saved {saved.folder}")
        except NotSaved as error:
            problem = str(error)
    if (problem := engine.world.share(problem)) and must:
        raise NotSaved(problem)
    if problem:
        telemetry.say(f"WARNING: {problem}; training continues, and will try again when the next checkpoint is due")
