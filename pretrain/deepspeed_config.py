"""DeepSpeed's JSON, read strictly: it owns speed and memory, the run's numbers go where it says "auto".

DeepSpeed takes an unknown top-level key in silence and trains without it; here every key of every level is
known, or refused with a reason or the nearest known key. DeepSpeed is not imported: any machine can check.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from data_prep.config import ConfigError, StrictConfig
from pretrain.optim import OptimConfig

Auto = Literal["auto"]
"""A value the run owns; the file says "auto" or leaves it out."""

Elements = Annotated[int, Field(ge=0, strict=False)]
"""A number of tensor elements; JSON may write it 5e7."""


class Section(StrictConfig):
    """Part of the file, its values of exactly the declared types: `"true"` is not true, and true is not 1."""

    model_config = ConfigDict(strict=True)


class OptimizerParams(Section):
    """`optimizer.params`: which AdamW; its numbers are the run's."""

    torch_adam: Literal[True]
    """PyTorch's AdamW; DeepSpeed's own are compiled at start (50 s on two CPU cores) and hold other state."""
    fused: bool = False
    """One kernel an update, on CPU and GPU."""
    lr: Auto = "auto"
    betas: Auto = "auto"
    eps: Auto = "auto"
    weight_decay: Auto = "auto"


class Optimizer(Section):
    """`optimizer`."""

    type: Literal["AdamW"]
    params: OptimizerParams


class OffloadOptimizer(Section):
    """`zero_optimization.offload_optimizer`: master weights and moments in the host's memory."""

    device: Literal["none", "cpu"]
    pin_memory: bool = True


class ZeroOptimization(Section):
    """`zero_optimization`: what is partitioned over the ranks, and how it travels."""

    stage: Literal[0, 1, 2, 3]
    contiguous_gradients: bool | None = None
    overlap_comm: bool | None = None
    reduce_scatter: bool | None = None
    round_robin_gradients: bool | None = None
    use_multi_rank_bucket_allreduce: bool | None = None
    allgather_partitions: bool | None = None
    reduce_bucket_size: Elements | None = None
    allgather_bucket_size: Elements | None = None
    sub_group_size: Elements | None = None
    stage3_prefetch_bucket_size: Elements | None = None
    stage3_param_persistence_threshold: Elements | None = None
    stage3_model_persistence_threshold: Elements | None = None
    stage3_max_live_parameters: Elements | None = None
    stage3_max_reuse_distance: Elements | None = None
    offload_optimizer: OffloadOptimizer | None = None


class Fp16(Section):
    """`fp16`: half precision with a loss scale; 0 is the dynamic one."""

    enabled: bool
    loss_scale: float | None = Field(default=None, ge=0)
    initial_scale_power: int | None = Field(default=None, ge=0)
    loss_scale_window: int | None = Field(default=None, gt=0)
    hysteresis: int | None = Field(default=None, gt=0)
    consecutive_hysteresis: bool | None = None
    min_loss_scale: int | None = Field(default=None, gt=0)


class Bf16(Section):
    """`bf16`."""

    enabled: bool


class DataTypes(Section):
    """`data_types`."""

    grad_accum_dtype: Literal["fp32", "bf16", "fp16"]


class FlopsProfiler(Section):
    """`flops_profiler`."""

    enabled: bool
    recompute_fwd_factor: float | None = Field(default=None, ge=0)
    profile_step: int | None = Field(default=None, gt=0)
    module_depth: int | None = None
    top_modules: int | None = Field(default=None, gt=0)
    detailed: bool | None = None
    output_file: str | None = None


class CommsLogger(Section):
    """`comms_logger`."""

    enabled: bool
    verbose: bool | None = None
    prof_all: bool | None = None
    debug: bool | None = None
    prof_ops: list[str] | None = None


class ThroughputTimer(Section):
    """`timers.throughput`: DeepSpeed's own samples per second; waits for the GPU at every micro-batch."""

    enabled: bool = False
    synchronized: bool | None = None


class Timers(Section):
    """`timers`."""

    throughput: ThroughputTimer = ThroughputTimer()


class DeepSpeedConfig(Section):
    """The whole file; field names and meanings are DeepSpeed's."""

    train_batch_size: Auto = "auto"
    train_micro_batch_size_per_gpu: Annotated[int, Field(gt=0)] | Auto = "auto"
    """Sequences a rank holds at once; "auto" is its whole share of the batch, without accumulation."""
    gradient_accumulation_steps: Auto = "auto"
    gradient_clipping: Auto = "auto"
    optimizer: Optimizer
    zero_optimization: ZeroOptimization
    fp16: Fp16 | None = None
    bf16: Bf16 | None = None
    data_types: DataTypes | None = None
    communication_data_type: Literal["fp32", "bf16", "fp16"] | None = None
    prescale_gradients: bool | None = None
    gradient_predivide_factor: float | None = Field(default=None, gt=0)
    flops_profiler: FlopsProfiler | None = None
    comms_logger: CommsLogger | None = None
    wall_clock_breakdown: bool | None = None
    memory_breakdown: bool | None = None
    timers: Timers = Timers()


REFUSED_KEYS = {
    "scheduler": "the run owns the learning rate: set optim.lr, optim.warmup_steps and optim.steps",
    "tensorboard": "the run writes its own TensorBoard log",
    "csv_monitor": "the run writes metrics.jsonl",
    "steps_per_print": "the run prints its own lines: set log_every",
    "checkpoint": "the run writes its own checkpoints",
    "torch_autocast": "precision is set by fp16 or bf16",
    "amp": "removed from DeepSpeed; use fp16 or bf16",
    "zero_allow_untested_optimizer": "the optimizer here is one that ZeRO supports",
    "gradient_allreduce_op": "losses are scaled for the mean, DeepSpeed's default",
    "zero_optimization.cpu_offload": "renamed by DeepSpeed: use zero_optimization.offload_optimizer",
    "zero_optimization.offload_param": "the models here fit every GPU; offload_optimizer saves more",
    "zero_optimization.stage3_module_granularity_threshold": "DeepSpeed 0.19.8 fails with it on a CPU",
    "fp16.auto_cast": "the inputs are ids, nothing is to be cast",
    "bf16.immediate_grad_update": "acts on one of DeepSpeed's optimizers only, which is not used here",
}
"""Keys of DeepSpeed that mean something there and have another owner here, with what to do instead."""


def resolve(
    source: Path | Mapping[str, Any],
    *,
    batch_size: int,
    world_size: int,
    device_type: str,
    optim: OptimConfig,
) -> dict[str, Any]:
    """What `deepspeed.initialize` takes: `source` checked, each "auto" filled with the run's value.

    `batch_size` is global; `device_type` is that of the training machines, "cuda" or "cpu".

    Raises:
        ConfigError: every unknown key, wrong value and impossible combination at once.
    """
    name = str(source) if isinstance(source, Path) else "deepspeed config"
    values = _read(source) if isinstance(source, Path) else dict(source)
    unknown = list(_unknown_keys(values, DeepSpeedConfig))
    if unknown:
        raise ConfigError(*(f"{name}: {problem}" for problem in unknown))
    config = DeepSpeedConfig.from_values(values, name)
    problems = [*_impossible(config, device_type), *_indivisible(config, batch_size, world_size)]
    if problems:
        raise ConfigError(*(f"{name}: {problem}" for problem in problems))
    return _fill(config, batch_size, world_size, optim)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(), object_pairs_hook=_without_duplicates)
    except OSError as error:
        raise ConfigError(f"deepspeed_config: cannot read {path}: {error.strerror}; see ds_configs/README.md") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: got {values!r}, expected an object of DeepSpeed's keys")
    return values


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{key!r} stands twice")
        values[key] = value
    return values


def _unknown_keys(values: Mapping[str, Any], schema: type[BaseModel], path: str = "") -> Iterator[str]:
    """One sentence for each key, at any level, that the schema lacks."""
    for key, value in values.items():
        field = schema.model_fields.get(key)
        if field is None:
            yield f"{path}{key}: {_why_unknown(path + key, schema)}"
        elif isinstance(value, Mapping) and (inner := _section(field.annotation)):
            yield from _unknown_keys(value, inner, f"{path}{key}.")


def _why_unknown(key_path: str, schema: type[BaseModel]) -> str:
    if key_path in REFUSED_KEYS:
        return f"not used here; {REFUSED_KEYS[key_path]}"
    nearest = difflib.get_close_matches(key_path.rpartition(".")[2], schema.model_fields, n=1)
    return (
        f"unknown key; did you mean {nearest[0]!r}?"
        if nearest
        else f"unknown key; known: {', '.join(schema.model_fields)}"
    )


def _section(annotation: Any) -> type[BaseModel] | None:
    candidates = (annotation, *get_args(annotation))
    return next((part for part in candidates if isinstance(part, type) and issubclass(part, BaseModel)), None)


def _impossible(config: DeepSpeedConfig, device_type: str) -> Iterator[str]:
    """Combinations that DeepSpeed 0.19.8 takes and then trains wrongly or fails in."""
    stage = config.zero_optimization.stage
    fp16, bf16 = bool(config.fp16 and config.fp16.enabled), bool(config.bf16 and config.bf16.enabled)
    if fp16 and bf16:
        yield "fp16.enabled and bf16.enabled: both true, expected at most one"
    if fp16 and device_type == "cpu":
        yield "fp16.enabled: true without a GPU; use ds_configs/zero1_bf16.json or ds_configs/zero1_fp32.json"
    if fp16 and stage == 0:
        yield (
            "zero_optimization.stage: 0 with fp16, where DeepSpeed divides gradients by a loss scale it never"
            " applied; use stage 1"
        )
    if bf16 and stage == 0:
        yield (
            "zero_optimization.stage: 0 with bf16, where DeepSpeed's first Adam update counts as the second"
            " (0.74 of its size); use stage 1"
        )
    offload = config.zero_optimization.offload_optimizer
    if offload and offload.device == "cpu" and stage == 0:
        yield "zero_optimization.offload_optimizer: set at stage 0, which offloads nothing; use stage 1"


def _indivisible(config: DeepSpeedConfig, batch_size: int, world_size: int) -> Iterator[str]:
    micro = config.train_micro_batch_size_per_gpu
    per_step = world_size * (1 if micro == "auto" else micro)
    if batch_size % per_step:
        yield (
            f"batch_size: got {batch_size}, expected a multiple of {per_step}"
            f" (train_micro_batch_size_per_gpu {micro} x {world_size} ranks)"
        )


def _fill(config: DeepSpeedConfig, batch_size: int, world_size: int, optim: OptimConfig) -> dict[str, Any]:
    values = config.model_dump(exclude_none=True)
    if config.train_micro_batch_size_per_gpu == "auto":
        values["train_micro_batch_size_per_gpu"] = batch_size // world_size
    values["train_batch_size"] = batch_size
    values["gradient_accumulation_steps"] = batch_size // (world_size * values["train_micro_batch_size_per_gpu"])
    values["gradient_clipping"] = optim.gradient_clipping
    values["optimizer"]["params"] |= {
        "lr": optim.lr,
        "betas": list(optim.betas),
        "eps": optim.eps,
        "weight_decay": optim.weight_decay,
    }
    return values
