"""Stages b and c of `bench/gpu.py`: the machine's own rates, and a training step with each optimization toggled."""

import gc
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.items import Figures, run_items
from bench.gpu.parts import SHAPES, GpuOptions, half_precision
from bench.gpu.setting import PLAIN, Plainly, Setting, engine_step, fast_modules, new_batch, setting
from bench.matrix_rate import matrix_rates
from bench.memory import peak_mb
from bench.models import CONFIGS, fresh_model, new_engine
from bench.timing import median_seconds, seconds_of
from pretrain.engine.deepspeed_config import read
from pretrain.engine.graphs import replay_micro_batches
from pretrain.engine.hardware import compute_deterministically
from pretrain.model import ops
from pretrain.planning.estimates import flops_per_token
from pretrain.presets import preset, with_objective
from pretrain.runs.models import compile_layers
from pretrain.training.metrics import MetricTotals

COPIED_BYTES = {"cuda": 2**32, "cpu": 2**26}
WARM_UPS = {"cuda": 5, "cpu": 1}
STEPS = {"cuda": 20, "cpu": 2}


class Switch(NamedTuple):
    """One change to the training step of `pretrain/run.py`."""

    settings: tuple[str, ...] = ()
    """Overrides of the DeepSpeed file."""
    compiled: bool = False
    graphs: bool = True
    """On a GPU forward and backward are captured and replayed as CUDA graphs."""
    deterministic: bool = True
    attention: tuple[SDPBackend, ...] = ()
    """Kernels that PyTorch may choose from; all of them if empty."""
    without: str | None = None
    """Module whose fast operations are replaced by plain ones."""


SWITCHES = {
    "as shipped": Switch(),
    "not deterministic": Switch(deterministic=False),
    "parameters not aligned": Switch(("deepspeed.zero_optimization.parameter_alignment=false",)),
    "PyTorch's attention by the formula": Switch(attention=(SDPBackend.MATH,)),
    "without CUDA graphs": Switch(graphs=False),
    "without CUDA graphs, activations recomputed": Switch(("deepspeed.activation_checkpointing={}",), graphs=False),
    "without CUDA graphs, layers compiled": Switch(compiled=True, graphs=False),
}
"""The changes to measure; the first is the baseline, which changes nothing."""


def rates(options: GpuOptions, product: Path) -> int:
    """Measures matrix products in each precision, and a copy of memory; returns 1 if one failed."""
    where = setting(options.device)
    precisions = ("bf16", "fp16", "fp32") if options.device == "cuda" else ("fp32",)
    items = {f"products {precision}": partial(matrix_rates, precision) for precision in precisions}
    return run_items({"copy": partial(copy_rate, where), **items}, product)


def copy_rate(where: Setting) -> Figures:
    """Returns the bytes read and written per second by a copy of memory."""
    source = torch.empty(COPIED_BYTES[where.device.type], dtype=torch.uint8, device=where.device).fill_(1)
    target = torch.empty_like(source)
    return {"bytes_per_second": 2 * source.numel() / median_seconds(lambda: target.copy_(source), 5)}


def ablation(options: GpuOptions, shape: str, product: Path) -> int:
    """Measures a training step with each switch; returns 1 if one failed."""
    compute_deterministically()  # as a run does; `measured` switches it off for one
    device = options.device
    where = shaped(device, shape)
    measured(where, Switch(), steps=1)  # an engine's start chooses the fast operations
    items = {name: partial(measured, where, switch, STEPS[device]) for name, switch in switches(device).items()}
    return run_items(items, product)


def switches(device: str) -> dict[str, Switch]:
    """Returns the switches that have an effect on this device, with one for each module of fast operations.

    Call it once an engine has started and so chosen its operations.
    """
    found = SWITCHES | {f"without {module.rpartition('.')[2]}": Switch(without=module) for module in fast_modules()}
    if any(getattr(ops, name) is not PLAIN[name] for name in ("attend", "attention_bias")):
        found = {name: switch for name, switch in found.items() if not switch.attention}
    if device == "cpu":  # where there are no graphs, and compiling is slow and gains nothing
        return {name: switch for name, switch in found.items() if switch.graphs}
    return found


def shaped(device: str, shape: str) -> Setting:
    """Returns the setting of a shape such as "base 512", with dropout."""
    name, length = shape.split()
    batch_size = next(batch for *known, batch in SHAPES[device] if known == [name, int(length)])
    run = with_objective(preset(name), "hp_loss")
    return setting(device)._replace(run=run, batch_size=batch_size, length=int(length))


def measured(where: Setting, switch: Switch, steps: int) -> Figures:
    """Returns the median seconds of a step, tokens and FLOPs per second, and peak memory."""
    gc.collect()  # the engine before, which refers to itself
    with ExitStack() as stack:
        if switch.attention:
            stack.enter_context(sdpa_kernel(list(switch.attention)))
        torch.use_deterministic_algorithms(switch.deterministic)
        stack.callback(torch.use_deterministic_algorithms, False)
        step = new_step(where, switch, stack)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        for _ in range(WARM_UPS[where.device.type]):
            step()
        seconds = statistics.median(seconds_of(step) for _ in range(steps))
    flops = flops_per_token(where.run.model, where.run.objective, where.vocabulary, where.length)
    tokens = where.batch_size * where.length
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "flops_per_second": flops * tokens / seconds,
        "peak_mb": peak_mb(),
    }


def new_step(where: Setting, switch: Switch, stack: ExitStack) -> Callable[[], object]:
    """Returns a function that does one training step of a new model; `stack` restores the operations."""
    torch.manual_seed(0)
    model = fresh_model(where.run, where.vocabulary)
    if switch.compiled:
        compile_layers(model)
    config = read(CONFIGS / f"zero1_{half_precision(where.device.type)}.json", switch.settings)
    engine = new_engine(model, where.run, config, where.batch_size, where.world)
    if switch.without:  # after the engine's start, before a capture
        stack.enter_context(Plainly(switch.without))
    batch = new_batch(where)
    if switch.graphs and where.device.type == "cuda":
        batch = batch.to(where.device, counts=True)
        replay_micro_batches(engine, batch, MetricTotals(where.device).add)
    return partial(engine_step, engine, batch)
