"""Bytes that a rank sends per training step, against the minimum for its ZeRO stage.

    deepspeed --num_gpus 2 bench/traffic.py [--config zero1_bf16.json ...] [--preset small]

Two counts, each with its ratio to the minimum (`least`). `asked`: the bytes of DeepSpeed's collectives if each is
implemented optimally, as in NCCL. `sent`: the payload of this process's TCP connections, counted by the kernel. On CPUs
these carry gloo's collectives, whose reduce-scatter is an all-reduce (twice the bytes) and whose reduce takes half as
much again.
"""

import contextlib
import fcntl
import os
import socket
import stat
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from electra_sampler.foundation.command_line import HIDDEN, run_command
from electra_sampler.foundation.config import ConfigError, StrictConfig

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
SEQ_LENGTH = 32  # the traffic does not depend on it
STEPS = 2  # counted, after two in which ZeRO-3 learns the order in which weights are used

TCP_INFO_SIZE = 128
BYTES_ACKED = slice(120, 128)  # tcpi_bytes_acked of Linux's struct tcp_info (include/uapi/linux/tcp.h), since 4.1


class TrafficOptions(StrictConfig):
    """The command line of the benchmark."""

    config: tuple[str, ...] = CONFIGS
    """files in ds_configs/, each optionally followed by comma-separated overrides"""
    preset: Literal["tiny", "small", "base"] = "tiny"
    """model sizes"""
    vocabulary: int = Field(default=30_522, ge=200)
    """vocabulary size"""
    micro_batches: int = Field(default=1, ge=1)
    """micro-batches accumulated per step by each rank"""
    local_rank: Annotated[int, HIDDEN] = 0
    """set by the launcher"""


class Traffic(NamedTuple):
    """Traffic of one DeepSpeed configuration: bytes per rank and step, averaged over ranks."""

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
        raise ConfigError("processes: expected several on CPUs; run deepspeed --num_gpus 2 bench/traffic.py")
    for config in options.config:
        traffic = measure(config, options, world)
        if world.is_first:
            print(traffic, flush=True)
    leave(0)


def measure(config: str, options: TrafficOptions, world: "World") -> Traffic:
    """Trains a few steps under `config` (FILE[,KEY=VALUE...]); returns the bytes each rank sends. Collective."""
    import torch

    from bench.batches import random_batch
    from bench.collectives import Collectives
    from bench.models import fresh_model, new_engine
    from pretrain.engine.deepspeed_config import read
    from pretrain.presets import preset

    run = preset(options.preset)
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
    torch.distributed.barrier()
    before = bytes_sent()
    with Collectives(world.world_size) as collectives:
        for _ in range(STEPS):
            step()
    counts = torch.tensor([collectives.bytes, bytes_sent() - before], dtype=torch.float64)
    asked, sent = (world.sum_over_ranks(counts) / world.world_size / STEPS).tolist()
    least = least_traffic(
        engine.config.stage, parameters, engine.dtype.itemsize, world.world_size, options.micro_batches
    )
    return Traffic(config, parameters, asked, sent, least)


def least_traffic(stage: int, parameters: int, element: int, world_size: int, micro_batches: int = 1) -> float:
    """Returns the minimum number of bytes that each rank sends in a step of `micro_batches` micro-batches per rank.

    For a tensor on n ranks, a reduce-scatter sends (n - 1) / n of its bytes, an all-gather as many, and an all-reduce
    twice as many (Rajbhandari et al. 2020, section 7). Stage 0 all-reduces the gradients. The other stages
    reduce-scatter them, stages 2 and 3 in every micro-batch, and all-gather the new weights. Stage 3 gathers them
    before the first forward and keeps them until the update, because these models are smaller than its
    `stage3_max_live_parameters`.
    """
    sums = micro_batches if stage >= 2 else 1
    return (sums + 1) * parameters * element * (world_size - 1) / world_size


def bytes_sent() -> int:
    """Returns the payload bytes that this process has written to its TCP connections so far.

    They are acknowledged or still queued, so retransmitted segments count once.
    """
    return sum(_sent_over(int(path.name)) for path in Path("/proc/self/fd").iterdir())


def _sent_over(descriptor: int) -> int:
    with contextlib.suppress(OSError):  # closed meanwhile, or not a TCP socket
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                queued = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
            return int.from_bytes(info[BYTES_ACKED], sys.byteorder) + int.from_bytes(queued, sys.byteorder)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, TrafficOptions, __doc__))
