"""A contender of bench/step.py: a process that runs one training step on each request."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from math import log
from pathlib import Path
from threading import Timer
from typing import Any, Literal, get_args

import torch
from pydantic import Field

from bench.batches import MASK, VOCABULARY, random_batch
from bench.collectives import Collectives
from bench.matrix_rate import DTYPES
from bench.memory import peak_mb
from bench.models import fresh_model, new_engine
from bench.study.file import Preset
from bench.timing import seconds_of
from electra_sampler.foundation.config import StrictConfig
from pretrain.config import RunConfig
from pretrain.data.batches import Batch
from pretrain.engine.graphs import replay_micro_batches
from pretrain.engine.hardware import file_of
from pretrain.job.processes import start_processes
from pretrain.method.electra import Electra, masked_states
from pretrain.method.sampling import predict
from pretrain.model.heads import HeadScores
from pretrain.planning.estimates import flops_per_token
from pretrain.presets import preset, with_objective
from pretrain.runs.models import compile_layers
from pretrain.training.metrics import MetricTotals

REPOSITORY = Path(__file__).resolve().parents[1]
Name = Literal["eager", "compiled", "electra", "hp_loss", "hp_dist", "hp_loss_compiled"]
CONTENDERS: tuple[Name, ...] = get_args(Name)
PEERS = CONTENDERS[:2]
OURS = CONTENDERS[2:]
LEARNING_RATE = 1e-4
MARK = "result: "
"""Prefix of the lines meant for the parent process; libraries print other lines."""
REPEATS = 7


class StepOptions(StrictConfig):
    """Model, batch and precision of a training step."""

    preset: Preset = "small"
    """model sizes"""
    batch_size: int = Field(default=16, ge=1)
    """sequences per step"""
    seq_length: int = Field(default=128, ge=8)
    """word pieces per sequence"""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """precision; fp16 needs a GPU"""


class Contender:
    """The parent's handle on a contender's process; `ended` says why the process ended early, if it did."""

    def __init__(self, name: str, options: StepOptions) -> None:
        command = [sys.executable, str(REPOSITORY / "bench/step.py"), "--serve", name]
        for option in StepOptions.model_fields:
            command += [f"--{option}", str(getattr(options, option))]
        self.name = name
        self.seconds: list[float] = []
        self.said: dict[str, Any] = {}
        """The contender's latest answers: the result of `about`, and finally the seconds of its `parts`."""
        self.ended = ""
        self._started = time.monotonic()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def warm_up(self, limit: float) -> None:
        """Runs the first step, including start-up and compilation; kills the process after `limit` seconds."""
        timer = Timer(limit, self._process.kill)
        timer.start()
        self._ask("step")
        timer.cancel()

    def steps(self, count: int) -> None:
        """Runs `count` consecutive steps; records the seconds of all but the first, which refills memory and caches."""
        taken = [self.said["seconds"] for _ in range(count) if self._ask("step")]
        self.seconds += taken[1:]

    def finish(self) -> None:
        """Ends the process; first asks it for the time of each part if it runs this project's step on a CPU.

        On a GPU, where parts overlap, `bench/gpu.py` lists the kernels of a step.
        """
        if self.name in OURS and not torch.cuda.is_available():
            self._ask("parts")
        self._process.communicate()

    def _ask(self, question: str) -> bool:
        """Sends a request and stores the answer in `said`; returns False if the process has ended."""
        assert self._process.stdin and self._process.stdout
        if self.ended:
            return False
        with suppress(BrokenPipeError):
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(MARK):
                    self.said |= json.loads(line.removeprefix(MARK))
                    return True
        self.ended = f"ended with {self._process.wait()} after {time.monotonic() - self._started:.0f} s"
        return False


def serve(name: str, options: StepOptions) -> None:
    """Runs in the contender's process: answers the parent's requests until its standard input closes."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    batch = random_batch(options.batch_size, options.seq_length).to(device)
    objective: Any = "electra" if name in PEERS else name.removesuffix("_compiled")
    run = with_objective(preset(options.preset), objective)
    compiled = name.endswith("compiled")
    step = peer(run, batch, options, compiled) if name in PEERS else EngineStep(run, batch, options, compiled)
    for question in sys.stdin:
        if question.strip() == "step":
            answer: dict[str, Any] = {"seconds": seconds_of(step)} | about(run, batch, options)
        else:
            answer = {"parts": parts(run, batch, options, step)}
        print(MARK + json.dumps(answer), flush=True)


def peer(run: RunConfig, batch: Batch, options: StepOptions, compiled: bool) -> Callable[[], None]:
    from bench.peers.electra_step import electra_step

    return electra_step(run.model, batch, DTYPES[options.dtype], compiled)


class EngineStep:
    """Our training step under the engine that one process gets by default, on a GPU with CUDA graphs."""

    def __init__(self, run: RunConfig, batch: Batch, options: StepOptions, compiled: bool) -> None:
        world, self.batch, self.compiled = start_processes(), batch, compiled
        self.updating: list[float] = []
        config = file_of(options.dtype, 1)  # what `auto` chooses for one process
        self.engine = new_engine(new_model(run, compiled), run, config, options.batch_size, world)
        if world.device.type == "cuda" and not compiled:
            self.batch = batch.to(world.device, counts=True)
            replay_micro_batches(self.engine, self.batch, MetricTotals(world.device).add)  # as in a run

    def __call__(self) -> None:
        self.engine.backward(self.engine.forward(self.batch).loss)
        self.updating.append(seconds_of(lambda: self.engine.update(LEARNING_RATE)))


def new_model(run: RunConfig, compiled: bool) -> Electra:
    model = fresh_model(run)
    if compiled:
        compile_layers(model)
    return model


def about(run: RunConfig, batch: Batch, options: StepOptions) -> dict[str, Any]:
    """Returns the machine, the process's peak memory and the FLOPs of a step."""
    machine = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    if torch.cuda.is_available():
        machine = torch.cuda.get_device_name()
    per_token = flops_per_token(run.model, run.objective, VOCABULARY, options.seq_length)
    return {"machine": machine, "peak_mb": peak_mb(), "flops": per_token * batch.token_count}


def parts(run: RunConfig, batch: Batch, options: StepOptions, step: Callable[[], None]) -> dict[str, float]:
    """Returns seconds per part: forward and backward of each model part outside the engine, then the engine's parts.

    - heads and sampling: those of plain ELECTRA.
    - sampling head: the extra time of this objective's heads and sampling.
    - communication: the collectives that DeepSpeed calls even with one process (bench/traffic.py counts the bytes of
      several).
    """
    assert isinstance(step, EngineStep)
    device = batch.input_ids_BL.device
    model, plain = (
        new_model(chosen, step.compiled).to(device, DTYPES[options.dtype])
        for chosen in (run, with_objective(run, "electra"))
    )
    tokens_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    hidden_BKH = masked_states(model.generator, batch, MASK, 0.0).detach().requires_grad_()
    works: dict[str, Callable[[], None]] = {
        "generator": lambda: train(model, lambda: masked_states(model.generator, batch, MASK, 0.0)),
        "heads and sampling": lambda: train(plain, lambda: heads_and_sampling(plain, batch, hidden_BKH)),
        "sampling head": lambda: train(model, lambda: heads_and_sampling(model, batch, hidden_BKH)),
        "discriminator": lambda: train(model, lambda: model.discriminate(batch, tokens_BK)[0]),
    }
    turns = [[seconds_of(work) for work in works.values()] for _ in range(1 + REPEATS)]
    with Collectives(world_size=1) as collectives:
        step()
    seconds = dict(zip(works, map(statistics.median, zip(*turns[1:], strict=True)), strict=True))
    seconds["sampling head"] = max(0.0, seconds["sampling head"] - seconds["heads and sampling"])
    return {
        **seconds,
        "update": statistics.median(step.updating) - collectives.seconds,
        "communication": collectives.seconds,
    }


def heads_and_sampling(model: Electra, batch: Batch, hidden_BKH: torch.Tensor) -> torch.Tensor:
    """Returns L_G and L_S, [2, B, K], for a discriminator that is undecided everywhere."""
    projected_BKE = model.generator_predictions(hidden_BKH)
    scores = HeadScores(projected_BKE, model.generator_lm_head, model.generator.embeddings.word_embeddings)
    prediction = predict(batch, hidden_BKH, scores.softmax(), model.objective.gamma)
    _, sampler_loss = model.draw(batch, prediction)
    undecided_BK = torch.zeros_like(prediction.loss_BK)
    return torch.stack((prediction.loss_BK, sampler_loss(undecided_BK, undecided_BK + log(2))))


def train(model: Electra, work: Callable[[], torch.Tensor]) -> None:
    """Runs `work`, a forward, and its backward into new gradients, as in a training step."""
    model.zero_grad()
    work().sum().backward()
