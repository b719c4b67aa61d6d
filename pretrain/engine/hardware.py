"""Chooses precision and operations by what this machine computes fastest (`--deepspeed_config auto`), and makes a GPU
compute the same bits whenever the same command runs on the same kind of machine.
"""

import os
import time
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from electra_sampler.foundation.config import ConfigError, shown
from electra_sampler.foundation.files import SHIPPED
from electra_sampler.foundation.machine import bf16_is_faster, instructions, is_intel
from pretrain.job.processes import World
from pretrain.model import ops
from pretrain.model.kernels import cpu_ops, cuda_ops

AUTO = Path("auto")
"""Value of `--deepspeed_config` that chooses the file by the hardware."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MUCH_FASTER = 2.0
"""A precision is called slow if fp32 is this many times as fast."""
LARGEST = 8192
"""Rows of the largest matrix product timed; no GPU is faster with more."""
LONG_ENOUGH = 0.02
"""No larger product is timed after one that took this many seconds, so that measuring takes a tenth of a second."""
REPEATS = 3
REPEATABLE = {
    "CUBLAS_WORKSPACE_CONFIG": ("cuBLAS", ":4096:8", ":16:8"),
    "NCCL_ALGO": ("NCCL", "^NVLS,NVLSTree", "^NVLS", "Ring"),
}
"""For each environment variable: its library, and the values that make it deterministic, the best first.

With NVLS the switch between the GPUs sums in its own order; NVLSTree is NVLS for several machines. Tree serves
all-reduce alone, so ZeRO's collectives would fail.
"""


class ChosenFile(NamedTuple):
    """A DeepSpeed file, and why it was chosen."""

    path: Path
    reason: str
    named: bool = False
    """By the user."""


def choose(processes: int, given: Path = AUTO) -> ChosenFile:
    """Returns the given file or, for `auto`, the file of this machine's fastest precision; fp32 for one process without
    DeepSpeed.

    The paper's V100 has fp16 but no bf16; from the A100 on, bf16 is as fast and does not overflow.
    """
    if given != AUTO:
        return ChosenFile(given, "as given by --deepspeed_config", named=True)
    if processes == 1 and find_spec("deepspeed") is None:
        return ChosenFile(file_of("fp32", processes), "DeepSpeed is not installed")
    if not torch.cuda.is_available():
        fast, slow = ("bf16", "fp32") if bf16_is_faster() else ("fp32", "bf16")
        return ChosenFile(file_of(fast, processes), f"this CPU ({instructions()}) multiplies {fast} faster than {slow}")
    name = torch.cuda.get_device_name()
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return ChosenFile(file_of("bf16", processes), f"{name} computes in bf16")
    return ChosenFile(file_of("fp16", processes), f"{name} has fp16 but no bf16")


def file_of(precision: str, processes: int) -> Path:
    """Returns the file of a precision; in fp32 one process has nothing to share, so it trains in plain PyTorch."""
    stage = 0 if precision == "fp32" and processes == 1 else 1
    return SHIPPED / "ds_configs" / f"zero{stage}_{precision}.json"


def name_of_hardware() -> str:
    """Returns the GPU's name, or the CPU's kind and instruction set; where it differs, results agree only within
    rounding.
    """
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{'Intel ' if is_intel() else ''}CPU with {instructions()}"


def require_same_precision(precision: str, world: World) -> None:
    """Checks that all ranks were given the same precision. Collective.

    Raises:
        ConfigError: on every rank, if they were not.
    """
    first = world.share(precision)
    if others := round(sum(world.of_ranks(precision != first))):
        raise ConfigError(
            f"deepspeed_config: auto chose {first} for the first rank and another precision for {others} of"
            f" {world.world_size}, whose hardware differs; name a file for all, such as --deepspeed_config zero1_fp32"
        )


def use_operations(world: World | None = None, *, partitioned: bool = False, few_shapes: bool = False) -> None:
    """Replaces functions of `ops` by the fastest for the hardware; in a job, for the first rank's. Collective.

    With `partitioned` weights (ZeRO stage 3), only functions that use a weight within its own module are chosen.
    `few_shapes` allows operations that are compiled for each shape.
    """
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        shared = getattr(gpu, "shared_memory_per_block_optin", 0)  # AMD's tell none
        cuda_ops.use((gpu.major, gpu.minor), partitioned, shared, few_shapes)
    else:
        faster = cpu_ops.onednn_is_faster()
        cpu_ops.use(world.share(faster) if world else faster)


def compute_deterministically(environment: MutableMapping[str, str] = os.environ) -> None:
    """Chooses deterministic algorithms in this process and those it starts; call it before anything runs on the GPU.

    From then on PyTorch raises a RuntimeError for an operation that has no deterministic form. A CPU computes the same
    bits anyway, with the same number of threads.

    Raises:
        ConfigError: the environment sets a value with which cuBLAS or NCCL is not deterministic.
    """
    for name, (library, best, *others) in REPEATABLE.items():
        if (got := environment.setdefault(name, best)) not in (best, *others):
            raise ConfigError(
                f"{name}: got {shown(got)} from the environment, expected {' or '.join((best, *others))}: with any"
                f" other value {library} is not deterministic; unset it"
            )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def product_speed(precision: str, device: torch.device) -> float:
    """Measures the FLOP/s of this process's square matrix products, by the `ops.linear` that the model uses."""
    size, seconds = 128, 0.0
    _seconds_of_product(size, precision, device)  # a GPU's library takes a second to start
    while seconds < LONG_ENOUGH and size < LARGEST:
        size *= 2
        seconds = _seconds_of_product(size, precision, device)
    fastest = min([seconds, *(_seconds_of_product(size, precision, device) for _ in range(REPEATS - 1))])
    return 2 * size**3 / fastest


def slow_precision(precision: str) -> str | None:
    """Returns a warning, with the measured ratio, if this CPU computes at least twice as fast in fp32."""
    if precision != "bf16" or torch.cuda.is_available() or bf16_is_faster():
        return None
    cpu = torch.device("cpu")
    ratio = product_speed("fp32", cpu) / product_speed("bf16", cpu)
    if ratio < MUCH_FASTER:
        return None
    return (
        f"deepspeed_config: got bf16, in which this CPU ({instructions()}) is slow: it multiplies {ratio:.0f} times as"
        " fast in fp32; add --deepspeed_config ds_configs/zero1_fp32.json"
    )


def _seconds_of_product(size: int, precision: str, device: torch.device) -> float:
    random = torch.Generator(device).manual_seed(0)  # its own generator: the run's randomness is untouched
    left = torch.randn(size, size, generator=random, device=device).to(DTYPES[precision])
    wait_for(left)
    started = time.perf_counter()
    wait_for(ops.linear(left, left))
    return time.perf_counter() - started


def wait_for(tensor: torch.Tensor) -> None:
    """Waits until `tensor` is computed: calls on GPUs return at once."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
