"""The training loop: `train` says when to step, report, evaluate, save and stop; `losses` is what a step computes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foundation.locks import confirm
from foundation.ordering import key_of
from pretrain.config import RunConfig
from pretrain.data.batches import Batch, BatchPlan, TrainingBatches, held_out_batches
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import NotSaved, save
from pretrain.engine.engine import Engine, StepResult
from pretrain.engine.loop import optimizer_step, resume
from pretrain.engine.optim import UNSCALED, AdamScale, learning_rate, without_bias_correction
from pretrain.job.stopping import EXIT_STOPPED, StopRequest
from pretrain.job.watchdog import Watchdog
from pretrain.training.doubts import too_long
from pretrain.training.guards import RECENT, require_finite, spike
from pretrain.training.reports import Interval, Reported
from pretrain.training.run_folder import CHECKPOINTS, DESCRIPTION, LOCK, writing
from pretrain.training.run_log import RunLog
from pretrain.training.starts import record_start
from pretrain.training.startup import Startup, describe_start
from pretrain.training.stragglers import OwnTime
from pretrain.training.throughput import Throughput, matrix_peak

HELD_OUT_SEED = 1
"""Keys the draws of every evaluation alike, so that evaluations of one run compare."""


class Training(NamedTuple):
    """The parts of a run, built."""

    run: RunConfig
    engine: Engine
    shards: Shards
    held_out: Shards | None
    plan: BatchPlan
    folder: Path
    watchdog: Watchdog
    write_folder: Callable[[], None]
    """Writes what describes the run to its folder."""
    startup: Startup


@dataclass
class Progress:
    """Where a run stands: with the engine's state, all that a resume needs."""

    step: int = 0
    """Optimizer steps whose data was consumed."""
    updates: int = 0
    """Steps that changed the weights: fewer than `step` where fp16 overflowed."""
    spikes: int = 0
    """Steps whose loss was a spike."""
    recent_losses: list[float] = field(default_factory=list)
    """Of the last steps, over all ranks; what a spike is measured by."""

    def advance(self, result: StepResult, loss: float) -> str | None:
        """Counts a step that is over; returns what is to be said of its loss."""
        self.step += 1
        self.updates += not result.overflow
        warning = spike(loss, self.recent_losses)
        self.spikes += warning is not None
        self.recent_losses = [*self.recent_losses, loss][-RECENT:]
        return warning and f"WARNING: step {self.step}: {warning}"


def train(training: Training) -> int:
    """Trains to the last step or to a request to stop; returns the process's exit code."""
    progress = resume(training.folder / CHECKPOINTS, training.engine, Progress)
    training.startup.done("resume")
    silent = not training.engine.world.is_first
    with writing(training.folder):
        log = RunLog(training.folder, progress.step, training.run.optim.steps, silent=silent)
    checkpoint = training.folder / CHECKPOINTS / f"step-{progress.step:08d}"
    log.say(f"resumed from step {progress.step} ({checkpoint})" if progress.step else "starts at step 0")
    with StopRequest(training.folder) as stop:
        try:
            code = run_steps(training, progress, log, stop)
        finally:
            log.close()  # among several ranks the interpreter's own shutdown, which would flush the curves, is skipped
    if training.engine.world.is_first:
        stop.withdraw(log.say)
    return code


def run_steps(training: Training, progress: Progress, log: RunLog, stop: StopRequest) -> int:
    """The steps that are left, with what falls due between them; returns the process's exit code."""
    run, engine = training.run, training.engine
    interval = Interval(engine, training.folder)
    batches = TrainingBatches(training.shards, training.plan, run.seed)
    own_time, throughput = OwnTime(engine), begin(training, progress.step, log)
    for micro_batches in own_time.reading(batches.from_step(progress.step, run.optim.steps)):
        due = Due(progress.step + 1, run.optim.steps)
        interval.expect(report=due(run.log_every), histograms=due(run.histogram_every))
        result, loss, stopping = optimizer_step(
            engine,
            losses(training, progress.step, micro_batches, interval, own_time),
            lambda: bool(stop) or training.watchdog.launcher_gone,
            rate_after(run, progress.updates),
            scale_after(run, progress.updates),
        )
        require_finite(result, loss, progress.step, batches, training.folder)
        if warning := progress.advance(result, loss):
            log.say(warning)
        if due(run.histogram_every):
            interval.draw(log, progress.step)
        if due(run.log_every):
            values = interval.end() | progress_values(run, progress, result)
            values |= throughput.end(progress.step, values["tokens"], values["tokens_per_second"])
            own = own_time.end()
            if engine.world.world_size > 1:  # alone nobody waits
                values |= own
            log.write("train", progress.step, values)
        if due(run.evaluate_every) and training.held_out is not None:
            log.write("held_out", progress.step, evaluate(training, training.held_out))
        training.watchdog.step_done(progress.step)
        if due(run.checkpoint_every) or stopping:
            save_progress(training, progress, log, must=stopping or progress.step == run.optim.steps)
        if stopping and progress.step < run.optim.steps:
            log.say(f"stopped on request after step {progress.step}; the same command goes on from there")
            return EXIT_STOPPED
    log.say(f"done: {progress.step} steps, {progress.step - progress.updates} skipped; see {training.folder}")
    return 0


def begin(training: Training, step: int, log: RunLog) -> Throughput:
    """Measures the machine and records the start. Collective."""
    engine = training.engine
    peak = matrix_peak(engine)
    training.startup.done("matrix peak")
    seconds = training.startup.of_ranks(engine)
    if engine.world.is_first:
        with writing(training.folder):
            record_start(training.folder, engine, step, peak, seconds)
    log.say(describe_start(seconds))
    throughput = Throughput(training.run, training.shards, step, peak)
    for doubt in too_long(throughput.fewest_days, "this machine at the best"):
        log.say(f"WARNING: {doubt}")
    return throughput


class Due(NamedTuple):
    """Whether what happens every so many steps happens after this one; after the last it always does."""

    step: int
    last: int

    def __call__(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.last


def losses(
    training: Training, step: int, micro_batches: list[Batch], interval: Interval, own_time: OwnTime
) -> Iterator[tuple[Tensor, Tensor]]:
    """The forward of each of this rank's micro-batches: its loss to differentiate, and its part of the step's."""
    engine = training.engine
    for number, batch in enumerate(micro_batches):
        torch.manual_seed(key_of(training.run.seed, step, number, engine.world.rank))  # dropout's only source
        training.watchdog.progress(f"reading the data of step {step + 1}")
        batch = batch.to(engine.device)
        with own_time.computing():
            output = engine.forward(batch, entropies=interval.watching)
        yield output.loss, output.loss.detach() / training.plan.micro_batches
        interval.see(batch, output)


def rate_after(run: RunConfig, updates: int) -> float:
    """Learning rate of the update that follows `updates` of them."""
    optim = run.optim
    return learning_rate(
        updates,
        base=optim.lr,
        warmup_steps=optim.warmup_steps,
        total_steps=optim.steps,
        multiplicative=optim.multiplicative_warmup,
    )


def scale_after(run: RunConfig, updates: int) -> AdamScale:
    """Factors on Adam's numbers for the update that follows `updates` of them."""
    return UNSCALED if run.optim.adam_bias_correction else without_bias_correction(updates, run.optim.betas)


def progress_values(run: RunConfig, progress: Progress, last: StepResult) -> dict[str, float]:
    """What the last step says of the optimization; an overflow has no norm."""
    norm = float(last.gradient_norm)
    return {
        "learning_rate": rate_after(run, progress.updates - 1),
        **({"gradient_norm": norm} if math.isfinite(norm) else {}),
        "loss_scale": last.loss_scale,
        "skipped": progress.step - progress.updates,
        "loss_spikes": progress.spikes,
    }


@torch.no_grad()
def evaluate(training: Training, held_out: Shards) -> dict[str, Any]:
    """The metrics of the held-out part, over all ranks. Collective."""
    engine = training.engine
    reported = Reported(engine)
    engine.module.eval()
    for batch in held_out_batches(held_out, training.run.evaluate_sequences, training.plan, HELD_OUT_SEED):
        training.watchdog.progress("a batch of the evaluation")
        batch = batch.to(engine.device)
        reported.add(batch, engine.forward(batch, entropies=True), watched=True)
    engine.module.train()
    return reported.values()


def save_progress(training: Training, progress: Progress, log: RunLog, must: bool) -> None:
    """Writes a checkpoint of this moment. Collective.

    Raises:
        NotSaved: on every rank, where the disk did not take it and it `must` be; else the run goes on and says so.
        Lost: on the first rank; the folder is another command's.
    """
    engine, folder, run = training.engine, training.folder / CHECKPOINTS, training.run
    state, problem = engine.full_state(), None
    if engine.world.is_first:
        confirm(training.folder / LOCK)
        kept: Any = {"keep_last": run.keep_checkpoints, "keep_every": run.keep_every}
        try:
            require_described(training, log)
            saved = save(folder, progress.step, state, asdict(progress), say=log.say, **kept)
            log.say(f"saved {saved.folder}")
        except NotSaved as error:
            problem = str(error)
    if (problem := engine.world.share(problem)) and must:
        raise NotSaved(problem)
    if problem:
        log.say(f"WARNING: {problem}; training goes on, and tries again when the next checkpoint is due")


def require_described(training: Training, log: RunLog) -> None:
    """Makes a run folder again that was removed under the run: a checkpoint alone is no run.

    Raises:
        NotSaved: it cannot be made.
    """
    folder = training.folder
    if (folder / DESCRIPTION).exists():
        return
    try:
        training.write_folder()
    except OSError as error:
        raise NotSaved(f"{folder} was removed while the run went on, and cannot be made again ({error})") from error
    log.say(
        f"WARNING: {folder} was removed while the run went on; it is made again, for the checkpoints from here on:"
        " logs and records begin again at the next start"
    )
