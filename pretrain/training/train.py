"""The loop of a run that `start` has built: it decides when to step, report, evaluate, save and stop."""

import time
from collections.abc import Iterator
from contextlib import closing, nullcontext

import torch
from torch import Tensor

from electra_sampler.foundation.ordering import key_of
from pretrain.data.batches import HELD_OUT_SEED, Batch, TrainingBatches, held_out_batches
from pretrain.data.remote import CACHE, GB
from pretrain.engine.engine import Engine, Unread, accumulate, end_step, resume
from pretrain.engine.graphs import replay_micro_batches
from pretrain.engine.optim import UNSCALED, without_bias_correction
from pretrain.job.stopping import EXIT_STOPPED, StopRequest
from pretrain.job.watchdog import Watchdog
from pretrain.planning.estimates import Machine
from pretrain.planning.plan import Plan
from pretrain.runs.folder import CHECKPOINTS
from pretrain.training.mask_choice import MaskChoice, MasksInTurn
from pretrain.training.metrics import evaluate
from pretrain.training.state import TrainingState, due, require_finite, save_state
from pretrain.training.telemetry import Telemetry


class Training:
    """A run that is ready to train: when it steps, reports, evaluates, saves and stops."""

    def __init__(
        self, plan: Plan, machine: Machine, engine: Engine, batches: TrainingBatches, watchdog: Watchdog
    ) -> None:
        """Resumes from the newest checkpoint, if any. Collective."""
        self.plan, self.machine, self.engine, self.batches, self.watchdog = plan, machine, engine, batches, watchdog
        self.run, self.last, exponent = plan.run, plan.run.optim.steps, plan.run.mask_choice
        self.state = resume(plan.folder / CHECKPOINTS, engine, TrainingState)
        self.choice = MaskChoice(exponent, self.state, batches, engine.world) if exponent else MasksInTurn()
        self.saves = self.run.checkpoint_every, self.run.keep_every or self.last
        self.first, self.saved_at = self.state.step, time.monotonic()

    def train(self) -> int:
        """Trains to the last step or to a stop request; returns the process's exit code."""
        CACHE.limit, CACHE.on_wait = round(self.plan.here.options.cache_gb * GB), self.wait
        with (
            StopRequest(self.plan.folder) as self.stop,
            closing(Telemetry(self.plan, self.machine, self.engine, self.state.step)) as self.telemetry,
        ):
            if self.plan.here.graphs and self.state.step < self.last:
                self.capture()
                self.telemetry.begin()
            code = self.run_steps()
        if self.engine.world.is_first:
            self.stop.withdraw(self.telemetry.say)
        return code

    def capture(self) -> None:
        """Captures a micro-batch as CUDA graphs; only `--graphs on` demands that this succeeds."""
        sample = self.batches.step(self.state.step)[0].to(self.engine.device, counts=True)
        try:
            replay_micro_batches(self.engine, sample, self.telemetry.observe)
        except RuntimeError as error:
            if self.plan.here.options.graphs == "on":
                error.add_note("graphs: a micro-batch could not be captured; --graphs off trains without CUDA graphs")
                raise
            reason = str(error).partition("\n")[0]
            self.telemetry.say(f"WARNING: graphs: trains without CUDA graphs, slower, as a capture failed: {reason}")

    def run_steps(self) -> int:
        """Runs the steps; returns the exit code.

        The outcome of a step is read once the device has its next backward to compute, so that it never waits for the
        host; at once only where something is due that needs it.
        """
        run, state, telemetry = self.run, self.state, self.telemetry
        every = (run.log_every, run.histogram_every, run.evaluate_every, *self.saves, *self.choice.every)
        unread: Unread | None = None
        for micro_batches in telemetry.own_time.reading(self.batches.from_step(state.step, self.last)):
            telemetry.step = number = state.step + (unread is not None) + 1
            total = accumulate(self.engine, self.losses(number - 1, micro_batches))
            stops = unread is not None and self.finish(unread)
            if not stops:
                unread = self.update(total)
                if any(due(each, number, self.last) for each in every):
                    stops, unread = self.finish(unread), None
            if stops:
                telemetry.say(f"stopped on request after step {state.step}; run the same command to resume")
                return EXIT_STOPPED
        telemetry.say(f"done: {state.step} steps, {state.step - state.updates} skipped; see {self.plan.folder}")
        return 0

    def wait(self, where: str) -> None:
        """Reports a wait for a shard; ends it on request as long as there is no new step to save."""
        self.watchdog.waits(where)
        if self.stop and self.state.step == self.first:
            self.watchdog.record("stopped", EXIT_STOPPED, f"stopped on request while {where}")
            raise SystemExit(EXIT_STOPPED)

    def losses(self, step: int, micro_batches: list[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Runs the forward of each of this rank's micro-batches of a step; yields the loss to differentiate, and its
        contribution to the step's mean loss.
        """
        engine, telemetry = self.engine, self.telemetry
        timed = telemetry.own_time.computing if engine.world.world_size > 1 else nullcontext  # read of several ranks
        for number, batch in enumerate(micro_batches):
            torch.manual_seed(key_of(self.run.seed, step, number, engine.world.rank))  # for dropout only
            self.watchdog.progress(f"reading the data of step {step + 1}")
            batch = batch.to(engine.device, counts=engine.device.type == "cuda")
            with timed():
                output = engine.forward(batch, entropies=telemetry.watching(step + 1))
            telemetry.forward_done(batch, output)
            self.choice.add(batch, output)
            yield output.loss, output.loss.detach() / self.batches.plan.micro_batches

    def update(self, total: Tensor) -> Unread:
        """Ends a step, whose outcome is read later; `total` is this rank's part of its mean loss."""
        optim, overdue = self.run.optim, time.monotonic() - self.saved_at > 60 * self.run.checkpoint_minutes
        requests = bool(self.stop) or self.watchdog.launcher_gone, overdue  # to stop, to save
        scale = UNSCALED if optim.adam_bias_correction else without_bias_correction(self.engine.adam_steps, optim.betas)
        return end_step(self.engine, total, requests, optim.rate(self.state.updates), scale)

    def finish(self, step: Unread) -> bool:
        """Reads the outcome of a step and does what follows from it; returns whether the run shall stop."""
        plan, state, telemetry = self.plan, self.state, self.telemetry
        result, (loss, stopping, saving) = step.read()
        require_finite(result, loss, state.step + 1, self.batches, plan.folder)
        if warning := state.advance(result, loss):
            telemetry.say(warning)
        self.choice.step_done(state.step)
        telemetry.step_done(state, result)
        if plan.held_out is not None and due(self.run.evaluate_every, state.step, self.last):
            held_out = held_out_batches(plan.held_out, self.run.evaluate_sequences, self.batches.plan, HELD_OUT_SEED)
            telemetry.write("held_out", state, evaluate(self.engine, held_out, self.watchdog.progress))
        self.watchdog.step_done(state.step)
        if stopping or saving or any(due(each, state.step, self.last) for each in self.saves):
            state.token_losses, must = self.choice.saved(), bool(stopping) or state.step == self.last
            save_state(self.engine, plan.folder, self.run, state, telemetry.say, must)
            self.saved_at = time.monotonic()
        return bool(stopping) and state.step < self.last
