"""Model, batch and device for the checks and the profile of `bench/gpu.py`."""

import json
from inspect import isfunction
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bench.batches import VOCABULARY, random_batch
from bench.models import CONFIGS, fresh_model, new_engine
from pretrain.config import RunConfig, with_overrides
from pretrain.data.batches import Batch
from pretrain.engine.engine import Engine
from pretrain.job.processes import World, start_processes
from pretrain.method.electra import Electra
from pretrain.model import ops
from pretrain.model.kernels import cpu_ops
from pretrain.presets import preset, with_objective

LEARNING_RATE = 1e-3  # large enough to change bf16 weights near 0.1, whose spacing is 0.0005
PRESETS = {"cuda": {"electra": "small", "modern": "modern_17m"}, "cpu": {"electra": "tiny", "modern": "modern_tiny"}}
PLAIN = {name: value for name, value in vars(ops).items() if isfunction(value)}
"""The plain PyTorch operations by name; faster ones replace them when an engine starts."""


class Plainly:
    """Replaces the faster operations by plain PyTorch inside the `with` block: all, or only those defined in the Python
    module `module`.
    """

    def __init__(self, module: str | None = None) -> None:
        fast = {name: vars(ops)[name] for name in PLAIN}
        self._fast = {name: form for name, form in fast.items() if module in (None, form.__module__)}

    def __enter__(self) -> None:
        for name in self._fast:
            setattr(ops, name, PLAIN[name])

    def __exit__(self, *error: object) -> None:
        for name, form in self._fast.items():
            setattr(ops, name, form)


def fast_modules() -> list[str]:
    """Returns the Python modules whose operations have replaced plain PyTorch."""
    return sorted({vars(ops)[name].__module__ for name in PLAIN} - {ops.__name__})


class Setting(NamedTuple):
    """Device, run configuration and shapes of the checks."""

    device: torch.device
    world: World
    run: RunConfig
    vocabulary: int
    batch_size: int
    length: int


def setting(device: str, backbone: str = "electra") -> Setting:
    """Returns the setting: a small preset, and no dropout, since its draws differ by device.

    Raises:
        RuntimeError: the device does not exist.
    """
    world = start_processes()
    if world.device.type != device:
        raise RuntimeError(f"device: asked for {device}, found {world.device.type}")
    run = with_overrides(preset(PRESETS[device][backbone]), ["model.dropout=0", "model.attention_dropout=0"])
    if device == "cuda":
        return Setting(world.device, world, run, VOCABULARY, 16, 128)
    cpu_ops.use()
    return Setting(world.device, world, run, 500, 8, 128)  # enough word pieces for a plain sum in bf16 to go wrong


def new_model(where: Setting, objective: str = "hp_loss") -> Electra:
    """Returns an fp32 model with the same weights each time; the sampling head's are random, not the usual zeros."""
    torch.manual_seed(0)
    model = fresh_model(with_objective(where.run, objective), where.vocabulary)
    for name, parameter in model.named_parameters():
        if name.startswith("sampler_"):
            nn.init.normal_(parameter, std=0.05)
    return model.to(where.device)


def new_batch(where: Setting) -> Batch:
    torch.manual_seed(1)
    return random_batch(where.batch_size, where.length, where.vocabulary).to(where.device)


def gentle_engine(where: Setting, model: Electra, name: str) -> Engine:
    """Returns an engine for the file `name` in `ds_configs/`, with an initial loss scale that does not overflow."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    if "fp16" in config:
        config["fp16"]["initial_scale_power"] = 10
    return new_engine(model, where.run, config, where.batch_size, where.world)


def engine_step(engine: Engine, batch: Batch) -> Tensor:
    """Trains one step; returns its loss."""
    loss = engine.forward(batch).loss
    engine.backward(loss)
    engine.update(LEARNING_RATE)
    return loss.detach()
