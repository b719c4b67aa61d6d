"""Overhead of DeepSpeed's engine per training step, against a plain PyTorch loop with the same model and batches.

    python bench/engine.py --preset base --batch_size 4 [--deepspeed_config FILE] [--data data/wikibooks]

The plain loop ("by hand") does backward, clipping and fused AdamW, on fp32 master weights if the model is in bf16. Both
take turns in one process. Operations are PyTorch calls that compute (views are not counted); on a GPU each launches one
or more kernels. With `--data` the engine then trains on shards, read in the background as in a run, and the share of
time spent waiting for them is printed.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from pydantic import Field
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.batches import VOCABULARY, random_batch
from bench.models import CONFIGS, fresh_model, new_engine
from bench.timing import seconds_of
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import StrictConfig
from pretrain.config import RunConfig
from pretrain.data.batches import Batch, BatchPlan, TrainingBatches
from pretrain.data.shards import open_shards
from pretrain.engine.engine import Engine
from pretrain.job.processes import World, start_processes
from pretrain.method.electra import Electra
from pretrain.presets import preset

LEARNING_RATE = 1e-4
TURNS = 4
WAITING_STEPS = 12
"""Steps on real data; the first two are not counted."""

Step = Callable[[Batch], None]


class EngineOptions(StrictConfig):
    """The command line of the benchmark."""

    preset: Literal["tiny", "small", "base"] = "base"
    """model sizes"""
    batch_size: int = Field(default=4, ge=1)
    """sequences per step"""
    seq_length: int = Field(default=128, ge=8)
    """word pieces per sequence"""
    deepspeed_config: Path = CONFIGS / "zero1_fp32.json"
    """DeepSpeed file: precision and ZeRO stage"""
    data: Path | None = None
    """shards to read in the background"""
    steps: int = Field(default=4, ge=1)
    """steps counted in each turn"""


def main(options: EngineOptions) -> None:
    world = start_processes()
    run = preset(options.preset)
    shards = open_shards(options.data) if options.data else None
    vocabulary = shards.manifest.vocab_size if shards else VOCABULARY
    engine = new_engine(new_model(run, vocabulary), run, options.deepspeed_config, options.batch_size, world)
    by_hand = hand_step(new_model(run, vocabulary), run, engine.device, engine.dtype)
    by_engine = partial(engine_step, engine)
    batch = random_batch(options.batch_size, options.seq_length, vocabulary).to(world.device)
    hand_seconds, seconds = take_turns(by_hand, by_engine, batch, options.steps)
    shape = f"{options.batch_size} x {options.seq_length}"
    print(f"{options.preset}, {options.deepspeed_config.stem}, {shape}, {world.device}")
    counts = [operations(partial(step, batch)) for step in (by_hand, by_engine)]
    print(f"  by hand {1e3 * hand_seconds:8.1f} ms per step, {counts[0]:,} operations")
    print(f"  engine  {1e3 * seconds:8.1f} ms per step, {counts[1]:,} operations: {seconds / hand_seconds - 1:+.1%}")
    if shards:
        plan = BatchPlan(options.batch_size, options.batch_size, world_size=1, rank=0)
        share = waiting_share(by_engine, TrainingBatches(shards, plan, run.seed).from_step(0, WAITING_STEPS), world)
        print(f"  waiting for data from {options.data}: {share:.3%} of the engine's time")


def new_model(run: RunConfig, vocabulary: int) -> Electra:
    torch.manual_seed(run.seed)
    return fresh_model(run, vocabulary)


def hand_step(model: Electra, run: RunConfig, device: torch.device, dtype: torch.dtype) -> Step:
    """Returns a training step in plain PyTorch, in the engine's precision."""
    model = model.to(device, dtype)
    pairs = [(weight, weight.detach().float()) for weight in model.parameters()]  # shared memory if fp32
    masters = [master for _, master in pairs]
    optimizer = torch.optim.AdamW(masters, lr=LEARNING_RATE, weight_decay=run.optim.weight_decay, eps=1e-6, fused=True)

    def step(batch: Batch) -> None:
        model(batch).loss.backward()
        for weight, master in pairs:
            master.grad = None if weight.grad is None else weight.grad.float()
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            for weight, master in pairs:
                weight.grad = None
                if weight.dtype != master.dtype:
                    weight.copy_(master)

    return step


def engine_step(engine: Engine, batch: Batch) -> None:
    """Does one training step under DeepSpeed's engine."""
    engine.backward(engine.forward(batch).loss)
    engine.update(LEARNING_RATE)


def take_turns(by_hand: Step, engine: Step, batch: Batch, steps: int) -> tuple[float, float]:
    """Returns the seconds of the fastest step by hand and under the engine.

    Not the median: on a shared machine its drift hides a difference of a few percent. The first step of each
    turn, in which memory is allocated again, is not counted.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for taken, step in zip(seconds, (by_hand, engine), strict=True):
            taken += [seconds_of(partial(step, batch)) for _ in range(1 + steps)][1:]
    return min(seconds[0]), min(seconds[1])


class _Operations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.count += not function.is_view
        return function(*arguments, **(options or {}))


def operations(work: Callable[[], None]) -> int:
    """Returns the number of PyTorch operations in `work`, views not counted."""
    with _Operations() as asked:
        work()
    return asked.count


def waiting_share(engine: Step, steps: Iterator[list[Batch]], world: World) -> float:
    """Returns the fraction of training time spent waiting for batches; the first two steps are not counted."""
    waits, times, finished = [], [], time.perf_counter()
    for (batch,) in steps:
        waits.append(time.perf_counter() - finished)
        times.append(seconds_of(partial(engine, batch.to(world.device))))
        finished = time.perf_counter()
    return sum(waits[2:]) / (sum(waits[2:]) + sum(times[2:]))


if __name__ == "__main__":
    sys.exit(run_command(main, EngineOptions, __doc__))
