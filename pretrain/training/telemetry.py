"""Everything that a run reports while it trains: the record of its start, log lines, histograms, examples, speed."""

import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from data_prep.tokens import CONTINUATION, open_tokenizer
from electra_sampler.foundation.config import counted
from electra_sampler.foundation.files import ROOT
from electra_sampler.foundation.progress import about, duration
from pretrain.data.batches import Batch
from pretrain.engine.engine import Engine, StepResult
from pretrain.method.objective import Output
from pretrain.planning.estimates import Machine
from pretrain.planning.plan import Plan
from pretrain.planning.plan_warnings import too_long
from pretrain.runs.folder import CHECKPOINTS, STARTS, writing
from pretrain.runs.log import RunLog
from pretrain.training.metrics import MetricTotals, histograms
from pretrain.training.state import TrainingState, due

FIRST_WORD = 10.0
"""Seconds after which a run without a log line so far prints its speed."""
PREFIXES = ("CUDA_", "NCCL_", "TORCH_", "DS_", "OMP_", "SLURM_JOB", "MASTER_", "PYTORCH_")
"""Prefixes of the environment variables recorded: variables that can change speed, memory or results."""

Item = TypeVar("Item")


class Telemetry:
    """Turns the events of the training loop into log lines, records, histograms and curves.

    Metrics are summed over every step since the last line; distributions, which cost more, cover only the last step.
    """

    def __init__(self, plan: Plan, machine: Machine, engine: Engine, step: int) -> None:
        """Records the start or resume at `step`, forecasts the time left, and begins the first log interval."""
        self._plan, self._run, self._machine, self._engine = plan, plan.run, machine, engine
        self._first_step, self._line_step = step, step
        self.step = step + 1
        """The step whose forwards run; the outcome of the one before it may still be unread."""
        self._log, steps = None, plan.run.optim.steps
        if engine.world.is_first:
            with writing(plan.folder):
                self._log = RunLog(plan.folder, step, steps, plan.here.options.log_to)
                record_start(plan.folder, engine, step, machine)
        resumed = f"resumed from step {step} ({plan.folder / CHECKPOINTS}/step-{step:08d})"
        self.say(resumed if step else "starts at step 0")
        self.say(
            f"forecast    {about(plan.seconds(machine, steps - step))} for {counted(steps - step, 'step')} on"
            f" {machine.name} at the speed measured now"
        )
        for warning in too_long(plan, machine, steps - step):
            self.say(f"WARNING: {warning}")
        self._reported, self.own_time = MetricTotals(engine.device), OwnTime(engine)
        self.observe = self._reported.add
        self._shown: tuple[Batch, Output] | None = None
        # read now: the folder may have been removed when an example is decoded
        self._vocabulary = open_tokenizer(str(plan.folder / "tokenizer")).shown if self._log else []
        self._spoken = False
        self.begin()

    def begin(self) -> None:
        """Begins the first log interval anew."""
        self._reported.sums.zero_()
        self._reported.distributions.zero_()
        self._began = self._since = time.monotonic()

    def say(self, line: str) -> None:
        """Prints a line, on the first rank."""
        if self._log:
            self._log.say(line)

    def close(self) -> None:
        if self._log:
            self._log.close()

    def watching(self, step: int) -> bool:
        """Returns whether the forwards of this step should compute entropies, because a report is due."""
        return any(self._due(every, step) for every in (self._run.log_every, self._run.histogram_every))

    def _due(self, every: int, step: int) -> bool:
        return due(every, step, self._run.optim.steps)

    def forward_done(self, batch: Batch, output: Output) -> None:
        """Adds one micro-batch of the current step."""
        if not self._engine.backend.replayed:  # by graphs, of which `observe` is a part
            self.observe(batch, output, self.watching(self.step))
        if self._log and self._due(self._run.histogram_every, self.step):
            self._shown = batch, output  # decoded after the step: now the host would have to wait for the device

    def step_done(self, state: TrainingState, result: StepResult) -> None:
        """Writes the reports that are due after the step. Collective."""
        if self._due(self._run.histogram_every, state.step):
            counts = self._engine.world.sum_over_ranks(self._reported.distributions.clone())
            if self._log and self._shown:
                self._log.write_example(state.step, example(*self._shown, self._vocabulary), histograms(counts))
            self._shown = None
        if self._due(self._run.log_every, state.step):
            self._write_line(state, result)
            self._spoken = True
        elif not self._spoken and (seconds := time.monotonic() - self._began) > FIRST_WORD:
            self._spoken = True
            done, last = state.step - self._first_step, self._run.optim.steps
            left = duration(seconds / done * (last - state.step))
            self.say(
                f"step {state.step}/{last}  loss {state.recent_losses[-1]:.3f}  {seconds / done:.1f} s per step"
                f"  {left} left"
            )
        if self.watching(state.step):
            self._reported.distributions.zero_()

    def _write_line(self, state: TrainingState, result: StepResult) -> None:
        values, now = self._reported.values(self._engine.world), time.monotonic()
        self._reported.sums.zero_()
        steps, seconds = state.step - self._line_step, now - self._since
        self._line_step, self._since = state.step, now
        if self._engine.device.type == "cuda":
            peaks = self._engine.world.of_ranks(torch.cuda.max_memory_allocated(self._engine.device))
            values["gpu_memory_gb"] = max(peaks) / 1e9
        values |= state.values(self._run, result)
        values |= speed(self._plan, steps, values["tokens"], seconds, self._machine.products)
        values |= work_done(self._plan, state.step)
        if self._engine.world.world_size > 1:  # a single process never waits
            values |= self.own_time.end()
        self.write("train", state, values)

    def write(self, kind: str, state: TrainingState, values: dict[str, Any]) -> None:
        """Writes a record of `kind` ("train" or "held_out") at the state's step."""
        if self._log:
            self._log.write(kind, state.step, values)


def speed(plan: Plan, steps: int, tokens: float, seconds: float, peak: float) -> dict[str, float]:
    """Returns the speed of an interval; FLOPs count word pieces only, not padding.

    `peak` is the speed of products in FLOP/s, over all ranks.
    """
    flops = tokens / seconds * plan.sizes.flops
    return {
        "tokens_per_second": tokens / seconds,
        "samples_per_second": steps * plan.run.batch_size / seconds,
        "tflops": flops / 1e12,
        "peak_share": flops / peak,
    }


def work_done(plan: Plan, step: int) -> dict[str, float | list[float]]:
    """Returns what a run has read and computed since its first step."""
    samples = step * plan.run.batch_size
    tokens = samples * plan.shards.mixture.mean_length
    epochs = [samples * share / size for _, size, share in plan.shards.mixture]
    return {
        "tokens_so_far": round(tokens),
        "flops_so_far": tokens * plan.sizes.flops,
        "epoch": max(epochs),  # of the mixed folders, the one read most often
        **({"epoch_of_folder": epochs} if len(epochs) > 1 else {}),
    }


class OwnTime:
    """Measures a rank's own time since the last reading: waiting for its data, and its forwards.

    Backwards, updates and whole steps include waiting for other ranks, so they take equally long on all. Under ZeRO-3 a
    forward also waits, for weights.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._steps, self._seconds = 0, 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def reading(self, source: Iterable[Item]) -> Iterator[Item]:
        """Yields the items of `source`, one per step, and adds the time spent waiting for each."""
        items, started = iter(source), time.perf_counter()
        for item in items:
            self._seconds += time.perf_counter() - started
            self._steps += 1
            yield item
            started = time.perf_counter()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Measures the device time of the `with` block; on a GPU without waiting for it."""
        if self._engine.device.type != "cuda":
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started
            return
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._events.append((start, end))

    def end(self) -> dict[str, float]:
        """Returns the slowest rank, its own seconds per step and the median rank's; resets the times. Collective."""
        self._seconds += sum(start.elapsed_time(end) for start, end in self._events) / 1e3
        seconds = self._engine.world.of_ranks(self._seconds / self._steps)
        self._steps, self._seconds, self._events = 0, 0.0, []
        return {
            "slowest_rank": seconds.index(max(seconds)),
            "slowest_rank_seconds": max(seconds),
            "median_rank_seconds": median(seconds),
        }


def example(batch: Batch, output: Output, vocabulary: Sequence[str]) -> str:
    """Returns the first sequence of a micro-batch as text.

    `[cat->dog]` marks a masked position where another token was drawn, `[cat]` one where the original was drawn; for a
    masked language model the drawn token is its most likely one. `!` follows each token, masked or not, that the
    discriminator takes for replaced.
    """
    if output.detected:
        tokens_BK, suspected_BL = output.detected.draw.tokens_BK, output.detected.d_BL > 0
    else:
        tokens_BK, suspected_BL = output.top_BK, torch.zeros_like(batch.attention_mask_BL)
    valid_K, visible_L = batch.masked_valid_BK[0], batch.attention_mask_BL[0]
    positions, drawn = batch.masked_positions_BK[0][valid_K].tolist(), tokens_BK[0][valid_K].tolist()
    originals, suspected = batch.input_ids_BL[0][visible_L].tolist(), suspected_BL[0].tolist()
    words = [vocabulary[token] for token in originals]
    for position, token in zip(positions, drawn, strict=True):
        other = "" if token == originals[position] else f"->{vocabulary[token]}"
        words[position] = f"[{words[position]}{other}]"
    marked = [word + "!" * suspected[position] for position, word in enumerate(words)]
    return " ".join(marked).replace(f" {CONTINUATION}", "")


def record_start(folder: Path, engine: Engine, step: int, machine: Machine) -> None:
    """Appends the record of this start, at `step`, to the run folder; first rank only."""
    cuda = engine.device.type == "cuda"
    record = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "processes": engine.world.world_size,
        "first_host": socket.gethostname(),
        "device": torch.cuda.get_device_name(engine.device) if cuda else platform.processor() or platform.machine(),
        "precision": str(engine.dtype).removeprefix("torch."),
        "zero_stage": engine.config.stage,
        "micro_batch_size": engine.config.micro_batch_size,
        "accumulation_steps": engine.config.accumulation_steps,
        "matrix_peak_tflops": machine.products / 1e12,
        **({} if cuda else {"fp32_peak_tflops": machine.fp32_products / 1e12}),
        "code": code_version(),
        "cuda": torch.version.cuda,
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith(PREFIXES)},
    }
    with (folder / STARTS).open("a") as file:
        file.write(json.dumps(record) + "\n")


def code_version(repository: Path = ROOT) -> str | None:
    """Returns this code's commit, with "+ changes" if tracked files differ from it; `None` outside a repository."""
    if not (repository / ".git").exists():  # installed, perhaps inside an unrelated repository
        return None
    question = ("git", "-C", repository, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= + changes")
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(question, capture_output=True, text=True, timeout=10).stdout.strip() or None
    return None
