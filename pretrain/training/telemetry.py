"""Collects everything a run reports during training, on the device, from the training forwards themselves."""

import time
from typing import Any

import torch

from data_prep.tokens import open_tokenizer
from foundation.config import counted
from foundation.progress import about, duration
from pretrain.data.batches import Batch
from pretrain.engine.engine import Engine, StepResult
from pretrain.method.objective import Output
from pretrain.training.assembly import Training
from pretrain.training.distributions import Distributions, describe, histograms
from pretrain.training.doubts import too_long
from pretrain.training.example import example
from pretrain.training.metrics import MetricSums, summary
from pretrain.training.run_folder import CHECKPOINTS, writing
from pretrain.training.run_log import RunLog
from pretrain.training.starts import record_start
from pretrain.training.state import TrainingState, due
from pretrain.training.stragglers import OwnTime, of_ranks
from pretrain.training.throughput import Throughput

FIRST_WORD = 10.0
"""Seconds after which a run that has no log line yet says how fast it is."""


class Reported:
    """Metrics and distributions gathered from forwards, over all ranks."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sums, self.distributions = MetricSums(engine.device), Distributions(engine.device)

    def add(self, batch: Batch, output: Output, watched: bool) -> None:
        """Adds one micro-batch; `watched` means that its forward also computed entropies."""
        self.sums.add(batch, output)
        if watched:
            self.distributions.add(batch, output)

    def values(self) -> dict[str, Any]:
        """Returns the summary of everything added, by metric name. Collective."""
        sums, distributions = (
            self.engine.sum_over_ranks(part.vector.clone()) for part in (self.sums, self.distributions)
        )
        return summary(sums) | describe(distributions)


class Telemetry:
    """Turns the events of the training loop into log lines, records, histograms and curves.

    Metrics are summed over every step since the last line; distributions, which cost more, cover only the last step.
    """

    def __init__(self, training: Training, step: int) -> None:
        """`step` is where the run starts or resumes."""
        engine, folder, run = training.engine, training.plan.folder, training.plan.run
        self._training, self._engine, self._run = training, engine, run
        self._first_step, self._step = step, step + 1
        with writing(folder):
            steps, log_to = run.optim.steps, training.plan.options.log_to
            self._log = RunLog(folder, step, steps, log_to) if engine.world.is_first else None
        self.say(f"resumed from step {step} ({folder / CHECKPOINTS}/step-{step:08d})" if step else "starts at step 0")
        self._reported, self.own_time = Reported(engine), OwnTime(engine)
        self._first: tuple[Batch, Output] | None = None
        # read now: the folder may have been removed when an example is decoded
        self._vocabulary = open_tokenizer(str(folder / "tokenizer")).tokens if engine.world.is_first else []

    def say(self, line: str) -> None:
        """Prints a line, on the first rank."""
        if self._log:
            self._log.say(line)

    def close(self) -> None:
        if self._log:
            self._log.close()

    def started(self) -> None:
        """Records the start, says how long the rest will take, and begins the first log interval. Collective."""
        training, engine, step = self._training, self._engine, self._step - 1
        peak = training.machine.products
        fp32_peak = None if engine.device.type == "cuda" else training.machine.fp32_products
        if engine.world.is_first:
            with writing(training.plan.folder):
                record_start(training.plan.folder, engine, step, peak, fp32_peak)
        self._throughput = Throughput(self._run, training.plan.shards, step, peak)
        left = self._run.optim.steps - step
        expected = about(training.plan.seconds(training.machine.flops, left))
        self.say(f"forecast    {expected} for {counted(left, 'step')} on {training.machine.name} if nothing else runs")
        for doubt in too_long(training.plan, training.machine, left):
            self.say(f"WARNING: {doubt}")
        self._began = self._since = time.monotonic()
        self._spoken = False

    @property
    def watching(self) -> bool:
        """True if the forwards of the current step should compute entropies, because a report is due."""
        return any(self._due(every) for every in (self._run.log_every, self._run.histogram_every))

    def _due(self, every: int) -> bool:
        return due(every, self._step, self._run.optim.steps)

    def forward_done(self, batch: Batch, output: Output) -> None:
        """Adds one micro-batch of the current step."""
        self._reported.add(batch, output, self.watching)
        if self._log and self._first is None and self._due(self._run.histogram_every):
            self._first = batch, output  # decoded after the step: now the host would have to wait for the device

    def step_done(self, state: TrainingState, result: StepResult) -> None:
        """Writes the reports that are due after the step. Collective."""
        if self._due(self._run.histogram_every):
            counts = self._engine.sum_over_ranks(self._reported.distributions.vector.clone())
            if self._log and self._first:
                text = example(*self._first, self._vocabulary)
                self._log.write_example(self._step, text, histograms(counts))
            self._first = None
        if self._due(self._run.log_every):
            self._write_line(state, result)
            self._spoken = True
        elif not self._spoken and (seconds := time.monotonic() - self._began) > FIRST_WORD:
            self._spoken = True
            done, last = state.step - self._first_step, self._run.optim.steps
            left = duration(seconds / done * (last - state.step))
            loss = f"loss {state.recent_losses[-1]:.3f}"
            self.say(f"step {state.step}/{last}  {loss}  {seconds / done:.1f} s per step  {left} left")
        if self.watching:
            self._reported.distributions.vector.zero_()
        self._step += 1

    def _write_line(self, state: TrainingState, result: StepResult) -> None:
        values = self._reported.values()
        values["tokens_per_second"] = values["tokens"] / (time.monotonic() - self._since)
        self._reported.sums.vector.zero_()
        self._since = time.monotonic()
        values |= gpu_memory(self._engine) | state.values(self._run, result)
        values |= self._throughput.end(state.step, values["tokens"], values["tokens_per_second"])
        own = self.own_time.end()
        if self._engine.world.world_size > 1:  # a single process never waits
            values |= own
        self.write("train", state, values)

    def write(self, kind: str, state: TrainingState, values: dict[str, Any]) -> None:
        """Writes a record of `kind` ("train" or "held_out") at the state's step."""
        if self._log:
            self._log.write(kind, state.step, values)


def gpu_memory(engine: Engine) -> dict[str, float]:
    """Returns peak tensor memory since the start, of the rank with the most, in GB; empty without GPUs. Collective."""
    if engine.device.type != "cuda":
        return {}
    peaks = of_ranks(engine, torch.cuda.max_memory_allocated(engine.device))
    return {"gpu_memory_gb": max(peak for (peak,) in peaks) / 1e9}
