"""Reads DeepSpeed's JSON strictly. The file sets speed and memory; the run's own numbers replace each "auto".

DeepSpeed silently ignores unknown top-level keys. Here, an unknown key at any level is an error that names the nearest
known key (deepspeed_keys.py). `--set deepspeed.KEY=VALUE` replaces single values. DeepSpeed itself is not imported, so
any machine can check a file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from electra_sampler.foundation.config import (
    ConfigError,
    counted,
    explained,
    one_of,
    parse_override,
    refuse,
    shown,
    without_duplicates,
)
from electra_sampler.foundation.files import SHIPPED, read_object
from electra_sampler.foundation.machine import bf16_is_faster
from pretrain.engine.deepspeed_keys import REFUSED_KEYS, DeepSpeedConfig


@dataclass(frozen=True)
class EngineConfig:
    """A DeepSpeed configuration, resolved for one run."""

    json: dict[str, Any]
    """The complete configuration for `deepspeed.initialize`."""
    stage: int
    """ZeRO stage."""
    precision: str
    """fp32, bf16 or fp16."""
    micro_batch_size: int
    """Sequences per rank and micro-batch."""
    accumulation_steps: int
    """Micro-batches per rank and step."""
    overlaps: bool
    """Gradients are reduced during the backward."""
    offloads: bool
    """Master weights and moments are in the host's memory."""
    recomputes: bool
    """Activation checkpointing: each layer is computed again in the backward."""


Source = Path | Mapping[str, Any] | DeepSpeedConfig
"""A file, its values, or its parsed configuration."""
OVERRIDE = "deepspeed."
"""Prefix of the `--set` keys that change DeepSpeed's values."""


def read(source: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> DeepSpeedConfig:
    """Reads a file and applies the overrides of `--set deepspeed.KEY=VALUE`; null removes a key.

    Raises:
        ConfigError: lists every unknown key and wrong value of the file or, if it has none, of the overrides.
    """
    if isinstance(source, Path) and source.parent in (Path(), Path("ds_configs")) and not source.exists():
        ours = (SHIPPED / "ds_configs" / source.name).with_suffix(".json")  # of the name alone, such as zero1_bf16
        source = ours if ours.is_file() else source
    values = _load(source) if isinstance(source, Path) else source
    config = _check(values, f"{source if isinstance(source, Path) else 'deepspeed config'}: ")
    return _check(_with_overrides(values, overrides), f"--set {OVERRIDE}") if overrides else config


def resolve(
    source: Source,
    *,
    batch_size: int,
    world_size: int,
    device_type: str,
    clipping: float,
) -> EngineConfig:
    """Checks `source` and replaces each "auto" with the run's value.

    `batch_size` is global; `clipping` is the largest global norm of the gradient, 0 for none; `device_type` is the
    device of the training machines, "cuda" or "cpu".

    Raises:
        ConfigError: see `read`; or lists every combination of values that does not work.
    """
    config = source if isinstance(source, DeepSpeedConfig) else read(source)
    problems = [OVERRIDE + problem for problem in _impossible(config, device_type)]
    micro = config.train_micro_batch_size_per_gpu
    per_step = world_size * (1 if micro == "auto" else micro)
    if batch_size % per_step:
        problems.append(
            f"batch_size: got {batch_size}, expected a multiple of {per_step}"
            f" (train_micro_batch_size_per_gpu {micro} x {counted(world_size, 'rank')}); --set batch_size or"
            f" {OVERRIDE}train_micro_batch_size_per_gpu, or start another number of processes"
        )
    refuse(problems)
    micro = batch_size // world_size if micro == "auto" else micro
    accumulation = batch_size // (world_size * micro)
    values = config.model_dump(exclude_none=True)
    values |= {
        "train_batch_size": batch_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clipping,
        "timers": {"throughput": {"enabled": False}},  # DeepSpeed's timer waits for the GPU at every micro-batch
        "zero_force_ds_cpu_optimizer": False,  # the back ends create their own
    }
    return EngineConfig(
        values,
        config.zero_optimization.stage,
        config.precision,
        micro,
        accumulation,
        overlaps=bool(config.zero_optimization.overlap_comm),
        offloads=config.zero_optimization.offloads,
        recomputes=config.activation_checkpointing is not None,
    )


def _load(path: Path) -> dict[str, Any]:
    ours = sorted(file.stem for file in (SHIPPED / "ds_configs").glob("*.json"))
    known = f"{one_of(path.stem, ('auto', *ours))}; see ds_configs/README.md"
    with explained(f"deepspeed_config: cannot read {path}", known, OSError):
        parse = partial(json.loads, object_pairs_hook=without_duplicates)
        return read_object(path, "deepspeed_config", "see ds_configs/README.md", parse)


def _with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> Mapping[str, Any]:
    refuse(
        f"--set: got {shown(override)}, expected deepspeed.KEY=VALUE, for example"
        " deepspeed.train_micro_batch_size_per_gpu=8"
        for override in overrides
        if not override.startswith(OVERRIDE) or "=" not in override
    )
    for path, value in filter(None, map(parse_override, overrides)):
        *sections, key = path.removeprefix(OVERRIDE).split(".")
        section = values = dict(values)
        for name in sections:
            inner = section.get(name)
            section[name] = dict(inner) if isinstance(inner, Mapping) else {}  # the check follows
            section = section[name]
        section[key] = value
    return values


def _check(values: Mapping[str, Any], place: str) -> DeepSpeedConfig:
    """Parses and checks the values; each problem starts with `place`.

    Raises:
        ConfigError: lists every unknown key and wrong value.
    """
    try:
        return DeepSpeedConfig.from_values(values)
    except ConfigError as error:
        problems = ((problem.partition(":")[0], problem) for problem in error.problems)
        instead = {key: f"{key}: not used here; {reason}" for key, reason in REFUSED_KEYS.items()}
        raise ConfigError(*(place + instead.get(key, problem) for key, problem in problems)) from None


def _impossible(config: DeepSpeedConfig, device_type: str) -> Iterator[str]:
    """Yields a message per combination that DeepSpeed 0.19.8 accepts but ignores, trains wrongly with or fails on."""
    stage = config.zero_optimization.stage
    fp16, bf16 = bool(config.fp16 and config.fp16.enabled), bool(config.bf16 and config.bf16.enabled)
    if fp16 and bf16:
        yield "fp16.enabled and bf16.enabled: both true, expected at most one; switch one off"
    if fp16 and device_type == "cpu":
        instead = f"ds_configs/zero1_{'bf16' if bf16_is_faster() else 'fp32'}.json"
        yield f"fp16.enabled: true without a GPU; add --deepspeed_config {instead}"
    if (fp16 or bf16) and stage == 0:
        yield f"zero_optimization.stage: 0 with {config.precision}, which needs fp32 master weights; use stage 1"
    if config.zero_optimization.offloads and stage == 0:
        yield "zero_optimization.offload_optimizer: set at stage 0, which offloads nothing; use stage 1"
    if fp16 and config.fp16 and config.fp16.loss_scale and config.fp16.loss_scale < 1:
        yield f"fp16.loss_scale: got {config.fp16.loss_scale}, expected 0 (dynamic) or at least 1; leave it out"
