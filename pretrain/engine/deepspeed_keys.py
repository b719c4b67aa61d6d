"""The supported keys of DeepSpeed's JSON. Any other key is refused, some with a hint on what to use instead.

A test tries every key of DeepSpeed 0.19.8: each is supported here or refused.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from electra_sampler.foundation.config import Count, StrictConfig

Auto = Literal["auto"]
"""A value that the run sets; the file says "auto" or leaves it out."""

Bucket = Annotated[int, Field(ge=0, le=2**31, strict=False)]
"""Elements of a DeepSpeed buffer, at most four times DeepSpeed's default of 5e8; JSON may also say 5e7."""


class Section(StrictConfig):
    """A section of a DeepSpeed file.

    Values must have exactly the declared types: `"true"` is not true, and true is not 1.
    """

    model_config = ConfigDict(strict=True)


class OffloadOptimizer(Section):
    """`zero_optimization.offload_optimizer`: master weights and moments in the host's memory."""

    device: Literal["none", "cpu"]
    """Where to keep master weights and moments: cpu, or none to leave them on the GPU."""
    pin_memory: bool = True
    """Page-locked host memory: faster transfers."""


class ZeroOptimization(Section):
    """`zero_optimization`: what is partitioned over the ranks, and how it is communicated."""

    stage: Literal[0, 1, 2, 3]
    """Partitions nothing (0), Adam's state (1), also gradients (2), also weights (3)."""
    overlap_comm: bool | None = None
    """Reduces gradients during the backward."""
    use_multi_rank_bucket_allreduce: bool | None = None
    """One reduction for several ranks' gradients."""
    parameter_alignment: bool | None = None
    """Starts each parameter at a multiple of 16 bytes, as fast kernels want."""
    reduce_bucket_size: Annotated[Bucket, Field(gt=0)] | None = None
    """Elements reduced at once."""
    allgather_bucket_size: Annotated[Bucket, Field(multiple_of=2)] | None = None
    """Elements gathered at once."""
    offload_optimizer: OffloadOptimizer | None = None

    @property
    def offloads(self) -> bool:
        return self.offload_optimizer is not None and self.offload_optimizer.device == "cpu"


class Switch(Section):
    """A section with a switch, such as `bf16`."""

    enabled: bool
    """Turns the section on."""


class Fp16(Switch):
    """`fp16`: half precision with a fixed or dynamic loss scale."""

    loss_scale: Annotated[float, Field(ge=0, le=2**127)] | None = None
    """Fixed loss scale; 0 for a dynamic one."""
    initial_scale_power: int | None = Field(default=None, ge=0, le=127)
    """The dynamic loss scale starts at 2 to this power."""
    loss_scale_window: Count | None = None
    """Steps without overflow after which the dynamic scale doubles."""
    hysteresis: Count | None = None
    """Overflows before the dynamic scale is halved."""
    min_loss_scale: int | None = Field(default=None, gt=0, le=2**127)
    """Smallest dynamic loss scale."""


class DeepSpeedConfig(Section):
    """A whole DeepSpeed file; field names and meanings are DeepSpeed's."""

    train_batch_size: Auto = "auto"
    train_micro_batch_size_per_gpu: Count | Auto = "auto"
    """Sequences per rank and micro-batch; "auto" is the rank's whole share of the batch, without accumulation."""
    gradient_accumulation_steps: Auto = "auto"
    gradient_clipping: Auto = "auto"
    zero_optimization: ZeroOptimization
    fp16: Fp16 | None = None
    bf16: Switch | None = None
    activation_checkpointing: Section | None = None
    """If set to {}, each layer keeps only its input and is computed again in the backward, with the same dropout."""

    @property
    def precision(self) -> str:
        """fp32, bf16 or fp16."""
        return "fp16" if self.fp16 and self.fp16.enabled else "bf16" if self.bf16 and self.bf16.enabled else "fp32"


REFUSED_KEYS = {
    "optimizer": "the run creates its own: set optim.lr, optim.betas, optim.weight_decay and optim.muon",
    "scheduler": "the run owns the learning rate: set optim.lr, optim.schedule, optim.warmup_steps and optim.steps",
    "steps_per_print": "the run prints its own lines: set log_every",
    "checkpoint": "the run writes its own checkpoints: set checkpoint_every, keep_checkpoints and keep_every",
    "tensorboard": "the run writes its own TensorBoard log",
    "csv_monitor": "the run writes metrics.jsonl",
    "flops_profiler": "--dry_run counts FLOPs, and PyTorch's own profiler times each operation",
    "timers": "the run logs its own throughput",
    "dump_state": "the resolved configuration is in the run folder's deepspeed.json",
    "elasticity": "a run resumes with any number of ranks that divides its batch: just start it with them",
    "autotuning": "it starts its own runs; try ds_configs/*.json with --set optim.steps=50 optim.warmup_steps=1",
    "amp": "removed from DeepSpeed; use fp16 or bf16",
    "bfloat16": "renamed by DeepSpeed: use bf16",
    "zero_optimization.cpu_offload": "renamed by DeepSpeed: use zero_optimization.offload_optimizer",
    "zero_optimization.offload_param": "the models here fit every GPU; use zero_optimization.offload_optimizer",
}
"""DeepSpeed keys that are handled elsewhere here, with what to use instead."""
