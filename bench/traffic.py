"""Bytes that a rank sends in a training step, beside the least that its ZeRO stage needs.

    deepspeed --num_gpus 2 bench/traffic.py [--config zero1_bf16.json ...] [--preset small]

Counted twice. `asked`: what the collectives that DeepSpeed calls take where each is done as well as it can be, as NCCL
does. `sent`: the payload of this process's TCP connections by the system's count; on CPUs gloo's collectives run over
them, of which a reduce-scatter is an all-reduce (twice the bytes) and a reduce takes half as much again.
"""

import contextlib
import os
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from foundation.command_line import HIDDEN, run_command
from foundation.config import ConfigError, StrictConfig

if TYPE_CHECKING:
    from pretrain.job.processes import World

FOLDER = Path(__file__).resolve().parents[1] / "ds_configs"
CONFIGS = (
    "zero0_fp32.json",
    "zero1_fp32.json",
    "zero1_fp32.json,deepspeed.zero_optimization.stage=2",
    "zero3_bf16.json,deepspeed.bf16=null",
    "zero1_bf16.json",
    "zero1_bf16.json,deepspeed.zero_optimization.stage=2",
    "zero3_bf16.json",
)
SEQ_LENGTH = 32  # what travels does not depend on it
STEPS = 2  # counted, after two that are not: ZeRO-3 learns in them the order in which weights are used

TCP_INFO_SIZE = 232
BYTES_SENT = slice(200, 208)  # tcpi_bytes_sent of Linux's struct tcp_info (include/uapi/linux/tcp.h), since 4.19


class TrafficOptions(StrictConfig):
    """The command line of the benchmark."""

    config: tuple[str, ...] = CONFIGS
    """files of ds_configs/, each with overrides after commas"""
    preset: Literal["tiny", "small", "base"] = "tiny"
    """model sizes"""
    vocabulary: int = Field(30_522, ge=200)
    """word pieces"""
    micro_batches: int = Field(1, ge=1)
    """accumulated in a step by each rank"""
    local_rank: Annotated[int, HIDDEN] = 0
    """given by the launcher"""


class Traffic(NamedTuple):
    """Of one DeepSpeed configuration: bytes a rank and step, the mean over ranks."""

    config: str
    parameters: int
    asked: float
    sent: float
    least: float

    def __str__(self) -> str:
        return (
            f"{self.config:51} {self.parameters:11,} parameters  least {self.least / 1e6:8.3f} MB"
            f"  asked {self.asked / 1e6:8.3f} ({self.asked / self.least:.3f})"
            f"  sent {self.sent / 1e6:8.3f} ({self.sent / self.least:.3f})"
        )


def main(options: TrafficOptions) -> int:
    from pretrain.job.processes import leave, start_processes

    world = start_processes()
    if world.device.type != "cpu" or world.world_size == 1:
        raise ConfigError("processes: expected several on CPUs; use deepspeed --num_gpus 2 bench/traffic.py")
    for config in options.config:
        traffic = measure(config, options, world)
        if world.is_first:
            print(traffic, flush=True)
    leave(0)


def measure(config: str, options: TrafficOptions, world: "World") -> Traffic:
    """Trains a few steps under this file and its overrides. Collective."""
    import torch

    from bench.batches import random_batch
    from bench.collectives import Collectives
    from bench.models import fresh_model, new_engine
    from pretrain.engine.deepspeed_config import read
    from pretrain.presets import preset

    run = preset(options.preset).run
    torch.manual_seed(0)
    model = fresh_model(run, options.vocabulary)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    batch_size = world.world_size * options.micro_batches
    name, *overrides = config.split(",")
    deepspeed = read(FOLDER / name, (*overrides, "deepspeed.train_micro_batch_size_per_gpu=1"))
    engine = new_engine(model, run, deepspeed, batch_size, world)
    batch = random_batch(1, SEQ_LENGTH, options.vocabulary)

    def step() -> None:
        for _ in range(options.micro_batches):
            engine.backward(engine.forward(batch).loss)
        engine.update(learning_rate=1e-4)

    for _ in range(2):
        step()
    engine.barrier()
    before = bytes_sent()
    with Collectives(world.world_size) as collectives:
        for _ in range(STEPS):
            step()
    counts = torch.tensor([collectives.bytes, bytes_sent() - before], dtype=torch.float64)
    asked, sent = (engine.sum_over_ranks(counts) / world.world_size / STEPS).tolist()
    least = least_traffic(
        engine.config.stage, parameters, engine.dtype.itemsize, world.world_size, options.micro_batches
    )
    return Traffic(config, parameters, asked, sent, least)


def least_traffic(stage: int, parameters: int, element: int, world_size: int, micro_batches: int = 1) -> float:
    """Bytes that each of `world_size` ranks sends in a step of `micro_batches` of its own, at the least.

    A tensor takes (n - 1) / n of its bytes to be summed into parts (reduce-scatter), the same to be gathered from them,
    and both to be summed for all (Rajbhandari et al. 2020, section 7). Stage 0 sums gradients for all, the others sum
    them into parts, stages 2 and 3 in every micro-batch, and gather new weights: stage 3 before the first forward,
    where they stay until the update, as they do in models this small (`stage3_max_live_parameters`).
    """
    sums = micro_batches if stage >= 2 else 1
    return (sums + 1) * parameters * element * (world_size - 1) / world_size


def bytes_sent() -> int:
    """Payload that this process's TCP connections have sent so far."""
    return sum(_sent_over(int(path.name)) for path in Path("/proc/self/fd").iterdir())


def _sent_over(descriptor: int) -> int:
    with contextlib.suppress(OSError):  # closed meanwhile, or a socket that is not TCP's
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
            return int.from_bytes(info[BYTES_SENT], sys.byteorder)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, TrafficOptions, __doc__))
