"""The machine that a forecast is for: this one, measured within half a second, or GPUs by their published speeds."""

import time
from dataclasses import replace
from typing import NamedTuple

import torch

from foundation.config import ConfigError
from foundation.machine import cores, memory
from pretrain.config import RunConfig
from pretrain.engine.deepspeed_config import read
from pretrain.engine.hardware import DTYPES, choose, product_speed, use_operations, wait_for
from pretrain.job.processes import World, local_ranks
from pretrain.method.registry import objective_class
from pretrain.model.encoder import EncoderConfig, LayerStack
from pretrain.training.estimates import FORWARD_AND_BACKWARD, GIB, flops_per_token, layer_flops
from pretrain.training.plan import Plan

LONG_ENOUGH = 0.03
"""Seconds that a layer's forward and backward should take, so that they can be measured."""
BESIDE_LAYERS, BESIDE_PRODUCTS = 1.1, 4.5
"""Ratios of times: a whole step, with embeddings and update, to its layers; heads, sampling and losses to their matrix
products in fp32. Fitted on one core of an AMD EPYC of 2024, for tiny and small, fp32 with AVX2 and bf16:
the four forecasts are within 9% of the measured step (docs/evidence/speed.md)."""


class Machine(NamedTuple):
    """The processors of a run, and their speed in training one model in one precision."""

    name: str
    flops: float
    """FLOP/s of all processes together, counted as in `flops_per_token`."""
    source: str
    memory: float
    """Bytes of one process."""
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability of a GPU."""
    products: float = 0.0
    """FLOP/s of square products in the run's precision, of all processes together; measured on this machine only."""
    fp32_products: float = 0.0
    """The same as `products`, but in fp32."""


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
"""GPUs by name and precision. Sources: NVIDIA DeepLearningExamples, TensorFlow2 ELECTRA, pre-training performance;
google-research/electra's README; NVIDIA's data sheets. Published sequences per second times the operations counted
here. The memory is the largest sold of each GPU."""


class Sizes(NamedTuple):
    """A run with its vocabulary and sequence length, which together give the operations per token."""

    run: RunConfig
    vocab_size: int
    length: int

    @property
    def flops(self) -> float:
        return flops_per_token(self.run.model, self.run.objective, self.vocab_size, self.length)


def machine_of(plan: Plan, world: World | None = None) -> Machine:
    """Returns the machine of a plan: GPUs that a dry run assumes, else this machine. Collective.

    Raises:
        ConfigError: there is no published speed of that GPU in the run's precision.
    """
    gpu, precision, processes = plan.target.gpu, plan.deepspeed.precision, plan.target.processes
    if not gpu:
        manifest = plan.shards.manifest
        return this_machine(Sizes(plan.run, manifest.vocab_size, manifest.seq_length), precision, processes, world)
    if found := GPUS.get((gpu, precision)):
        return found._replace(name=f"{processes} {found.name}", flops=found.flops * processes)
    raise ConfigError(f"forecast: got {gpu} with {precision}, for which no speed is published; name another of the two")


def this_machine(sizes: Sizes, precision: str, processes: int = 1, world: World | None = None) -> Machine:
    """Measures the processes of `world` together, or one that has this machine to itself. Collective."""
    use_operations()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    products = product_speed(precision, device)
    fp32 = products if precision == "fp32" else product_speed("fp32", device)
    flops = sizes.flops / seconds_per_token(sizes, precision, device, products, fp32)
    alone = processes if cuda else 1
    speeds = [world.sum(own) if world else own * alone for own in (products, fp32)]
    flops = world.sum(flops) if world else flops * alone
    source = "its speed on a layer of each encoder, measured now"
    if cuda:
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        capability = (gpu.major, gpu.minor)
        return Machine(f"{processes} {gpu.name}", flops, source, float(gpu.total_memory), capability, *speeds)
    here = local_ranks() if world else processes
    name = "this core" if cores() == 1 else f"these {cores()} cores"
    name = name if here == processes else f"{processes} processes"
    return Machine(name, flops, source, memory() / here, (0, 0), *speeds)


def seconds_per_token(sizes: Sizes, precision: str, device: torch.device, products: float, fp32: float) -> float:
    """Measures a layer of each encoder, forward and backward; returns the seconds of a training step per token, given
    the speeds of products in the run's precision and in fp32.
    """
    seconds, of_layers = 0.0, 0.0
    for encoder in objective_class(sizes.run.objective.name).encoders(sizes.run.model, sizes.vocab_size):
        flops = FORWARD_AND_BACKWARD * layer_flops(encoder, sizes.length)
        rows = max(1, int(LONG_ENOUGH * products / flops / sizes.length))
        seconds += encoder.num_hidden_layers * _layer_seconds(encoder, rows, sizes.length, precision, device)
        of_layers += encoder.num_hidden_layers * flops
    return BESIDE_LAYERS * seconds + BESIDE_PRODUCTS * (sizes.flops - of_layers) / fp32


def _layer_seconds(encoder: EncoderConfig, rows: int, length: int, precision: str, device: torch.device) -> float:
    """Returns the shortest of three forwards and backwards of one layer, per token."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # the run's randomness is untouched
        stack = LayerStack(replace(encoder, num_hidden_layers=1)).to(device, DTYPES[precision]).train()
        hidden_BLH = torch.randn(rows, length, encoder.hidden_size, device=device).to(DTYPES[precision])
        visible_BL = torch.ones(rows, length, dtype=torch.bool, device=device)
        seconds = []
        for _ in range(3):
            wait_for(hidden_BLH)
            started = time.perf_counter()
            output_BLH = stack(hidden_BLH.requires_grad_(), visible_BL)
            output_BLH.backward(torch.ones_like(output_BLH))
            wait_for(output_BLH)
            seconds.append(time.perf_counter() - started)
    return min(seconds) / (rows * length)


def forecast_here(sizes: Sizes, mean_length: float, processes: int) -> tuple[str, float]:
    """Returns where a run without shards yet would train, such as `these 2 cores in fp32`, and its seconds."""
    precision = read(choose(processes).file).precision
    machine = this_machine(sizes, precision, processes)
    tokens = sizes.run.optim.steps * sizes.run.batch_size * mean_length
    return f"{machine.name} in {precision}", tokens * sizes.flops / machine.flops
