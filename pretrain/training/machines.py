"""The machine that a forecast is for: this one, measured in a tenth of a second, or GPUs by their published speeds."""

from typing import NamedTuple

import torch

from foundation.config import ConfigError
from foundation.machine import cores, memory
from pretrain.config import RunConfig
from pretrain.engine.deepspeed_config import read
from pretrain.engine.hardware import choose, product_speed, use_operations
from pretrain.job.processes import World, local_ranks
from pretrain.training.estimates import GIB, flops_per_token
from pretrain.training.plan import Plan

SHARES = {"fp32": 0.45, "bf16": 0.35, "fp16": 0.26}
"""Share of the speed of square products that a training step reaches, by precision (docs/evidence/speed.md)."""


class Machine(NamedTuple):
    """The processors of a run, and their speed in training an ELECTRA in one precision."""

    name: str
    flops: float
    """FLOP/s of all processes together, counted as in `flops_per_token`."""
    source: str
    memory: float
    """Bytes of one process."""
    capability: tuple[int, int] = (0, 0)
    """Of a GPU."""


GPUS = {
    ("v100", "fp16"): Machine(
        "V100",
        32.8e12,
        "26% of 125 TFLOP/s: NVIDIA's ELECTRA-base at length 512, 96 sequences/s per V100",
        32 * GIB,
        (7, 0),
    ),
    ("v100", "fp32"): Machine(
        "V100", 3.3e12, "21% of 15.7 TFLOP/s: google-research/electra's small model, 4 days on a V100", 32 * GIB, (7, 0)
    ),
    ("a100", "bf16"): Machine(
        "A100",
        58.5e12,
        "19% of 312 TFLOP/s: NVIDIA's ELECTRA-base at length 512, 171 sequences/s per A100",
        80 * GIB,
        (8, 0),
    ),
    ("h100", "bf16"): Machine("H100", 185e12, "an A100's share, 19%, of 989 TFLOP/s (assumed)", 80 * GIB, (9, 0)),
}
"""By name and precision. Sources: NVIDIA DeepLearningExamples, TensorFlow2 ELECTRA, pre-training performance; google-
research/electra's README; NVIDIA's data sheets. Published sequences per second times the operations counted here. The
memory is that of the model with the most."""


def machine_of(plan: Plan, world: World | None = None) -> Machine:
    """Returns the machine of a plan: GPUs that a dry run assumes, else this machine. Collective.

    Raises:
        ConfigError: there is no published speed of that GPU in the run's precision.
    """
    gpu, precision, processes = plan.assumed_gpu, plan.deepspeed.precision, plan.world_size
    if not gpu:
        return this_machine(precision, processes, world)
    if found := GPUS.get((gpu, precision)):
        return found._replace(name=f"{processes} {found.name}", flops=found.flops * processes)
    raise ConfigError(f"forecast: got {gpu} with {precision}, of which no speed is published; name another of the two")


def this_machine(precision: str, processes: int = 1, world: World | None = None) -> Machine:
    """Measures the processes of `world` together, or one that has this machine to itself. Collective."""
    use_operations(world)
    cuda = torch.cuda.is_available()
    own = product_speed(precision, torch.device("cuda" if cuda else "cpu"))
    speed = world.sum(own) if world else own * (processes if cuda else 1)
    share = SHARES[precision]
    source = f"{share:.0%} of the {speed / 1e9:,.0f} GFLOP/s of its products, measured now"
    if cuda:
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        name, capability = f"{processes} {gpu.name}", (gpu.major, gpu.minor)
        return Machine(name, share * speed, source, float(gpu.total_memory), capability)
    here = local_ranks() if world else processes
    name = "this core" if cores() == 1 else f"these {cores()} cores"
    return Machine(name if here == processes else f"{processes} processes", share * speed, source, memory() / here)


def forecast_here(
    run: RunConfig, vocab_size: int, seq_length: int, mean_length: float, processes: int
) -> tuple[str, float]:
    """Returns where a run without shards yet would train, such as `these 2 cores in fp32`, and its seconds."""
    precision = read(choose(processes).file).precision
    machine = this_machine(precision, processes)
    tokens = run.optim.steps * run.batch_size * mean_length
    flops = flops_per_token(run.model, run.objective, vocab_size, seq_length) * tokens
    return f"{machine.name} in {precision}", flops / machine.flops
