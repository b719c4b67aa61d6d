"""The keys of DeepSpeed's JSON: those the file may hold, and for every other the reason why not.

A test feeds every key that DeepSpeed 0.19.8 knows: each is here, or refused with a reason.
"""

import sys
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from foundation.config import MOST, FileName, StrictConfig

Auto = Literal["auto"]
"""A value the run owns; the file says "auto" or leaves it out."""

Elements = Annotated[int, Field(ge=0, le=sys.maxsize, strict=False)]
"""A number of tensor elements; JSON may write it 5e7."""
Bucket = Annotated[int, Field(ge=0, le=2**31, strict=False)]
"""The same, of a buffer that DeepSpeed may allocate as a whole: four times its own default of 5e8."""
Scale = Annotated[float, Field(ge=0, le=2**127)]
"""Of the loss, in fp32."""
Count = Annotated[int, Field(gt=0, le=MOST)]


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
    reduce_bucket_size: Annotated[Bucket, Field(gt=0)] | None = None
    allgather_bucket_size: Annotated[Bucket, Field(multiple_of=2)] | None = None
    sub_group_size: Elements | None = None
    stage3_prefetch_bucket_size: Elements | None = None
    stage3_param_persistence_threshold: Elements | None = None
    stage3_model_persistence_threshold: Elements | None = None
    stage3_max_live_parameters: Elements | None = None
    stage3_max_reuse_distance: Elements | None = None
    offload_optimizer: OffloadOptimizer | None = None

    @property
    def offloads(self) -> bool:
        return self.offload_optimizer is not None and self.offload_optimizer.device == "cpu"


class Fp16(Section):
    """`fp16`: half precision with a loss scale; 0 is the dynamic one."""

    enabled: bool
    loss_scale: Scale | None = None
    initial_scale_power: int | None = Field(default=None, ge=0, le=127)
    loss_scale_window: Count | None = None
    hysteresis: Count | None = None
    consecutive_hysteresis: bool | None = None
    min_loss_scale: int | None = Field(default=None, gt=0, le=2**127)


class Bf16(Section):
    """`bf16`."""

    enabled: bool


class DataTypes(Section):
    """`data_types`."""

    grad_accum_dtype: Literal["fp32", "bf16", "fp16"]


class ActivationCheckpointing(Section):
    """`activation_checkpointing`: where the section stands, each layer keeps its input alone and is computed again in
    the backward, with the same dropout.
    """

    partition_activations: Literal[False] = False
    contiguous_memory_optimization: Literal[False] = False
    cpu_checkpointing: Literal[False] = False
    synchronize_checkpoint_boundary: Literal[False] = False
    profile: Literal[False] = False


class FlopsProfiler(Section):
    """`flops_profiler`."""

    enabled: bool
    recompute_fwd_factor: float | None = Field(default=None, ge=0, le=1)
    profile_step: Count | None = None
    module_depth: int | None = Field(default=None, ge=-1, le=MOST)
    top_modules: Count | None = None
    detailed: bool | None = None
    output_file: Annotated[FileName, Field(min_length=1)] | None = None


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
    train_micro_batch_size_per_gpu: Count | Auto = "auto"
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
    gradient_predivide_factor: float | None = Field(default=None, ge=2**-24, le=2**24)
    activation_checkpointing: ActivationCheckpointing | None = None
    flops_profiler: FlopsProfiler | None = None
    comms_logger: CommsLogger | None = None
    wall_clock_breakdown: bool | None = None
    memory_breakdown: bool | None = None
    timers: Timers = Timers()


_PARALLEL = "the models here fit every GPU: ranks share the batch, not the layers"
_OTHER_MODELS = "for models or data that are not trained here"
_OTHER_ZERO = (
    "for models far larger than ELECTRA's, and not tried with these checkpoints; use stages 1 to 3 as they are"
)
_NVME = "these models' state fits the host's memory: use device cpu"

REFUSED_KEYS = {
    "scheduler": "the run owns the learning rate: set optim.lr, optim.warmup_steps and optim.steps",
    "tensorboard": "the run writes its own TensorBoard log",
    "csv_monitor": "the run writes metrics.jsonl",
    "wandb": "the run writes TensorBoard and metrics.jsonl; read those",
    "comet": "the run writes TensorBoard and metrics.jsonl; read those",
    "steps_per_print": "the run prints its own lines: set log_every",
    "log_level": "the run prints its own lines, and DeepSpeed's warnings",
    "dump_state": "the resolved configuration is in the run folder's deepspeed.json",
    "checkpoint": "the run writes its own checkpoints: set checkpoint_every, keep_checkpoints and keep_every",
    "nebula": "the run writes its own checkpoints: set checkpoint_every, keep_checkpoints and keep_every",
    "datastates_ckpt": "the run writes its own checkpoints: set checkpoint_every, keep_checkpoints and keep_every",
    "torch_autocast": "precision is set by fp16 or bf16",
    "amp": "removed from DeepSpeed; use fp16 or bf16",
    "bfloat16": "renamed by DeepSpeed: use bf16",
    "zero_allow_untested_optimizer": "the optimizer here is one that ZeRO supports",
    "zero_force_ds_cpu_optimizer": "the optimizer here is PyTorch's, offloaded or not",
    "gradient_allreduce_op": "losses are scaled for the mean, DeepSpeed's default",
    "managed_gradient_accumulation": "the run's own steps end an accumulation",
    "sparse_gradients": "the embeddings are tied to the vocabulary heads, whose gradient is dense",
    "disable_allgather": "removed from DeepSpeed",
    "disable_python_gc": "the run leaves Python's collector alone",
    "dataloader_drop_last": "the run reads its own shards; every step has a whole batch",
    "vocabulary_size": "the vocabulary is the shards'",
    "elasticity": "a run goes on with any number of ranks that divides its batch: just start it on them",
    "autotuning": "it starts runs of its own; try ds_configs/*.json with --set optim.steps=50 optim.warmup_steps=1",
    "aio": _NVME,
    "compile": "not tried with DeepSpeed's compiled passes",
    "graph_harvesting": "not tried with CUDA graphs: the masked positions change their number",
    "pipeline": _PARALLEL,
    "tensor_parallel": _PARALLEL,
    "expert_parallel": _PARALLEL,
    "use_data_before_expert_parallelism": _PARALLEL,
    "seq_parallel_communication_data_type": _PARALLEL,
    "hybrid_engine": _OTHER_MODELS,
    "sparse_attention": _OTHER_MODELS,
    "data_efficiency": "the order of the data follows from (seed, step)",
    "curriculum_learning": "the order of the data follows from (seed, step)",
    "progressive_layer_drop": "it changes what is trained",
    "eigenvalue": "it changes what is trained",
    "quantize_training": "it changes what is trained",
    "weight_quantization": "it changes what is trained",
    "compression_training": "it changes what is trained",
    "optimizer.legacy_fusion": "acts on DeepSpeed's own Adam, which is not used here",
    "fp16.auto_cast": "the inputs are ids, nothing is to be cast",
    "fp16.fp16_master_weights_and_grads": "master weights are fp32: checkpoints go from one precision to another",
    "bf16.bf16_master_weights_and_grads": "master weights are fp32: checkpoints go from one precision to another",
    "bf16.bf16_optimizer_states": "Adam's moments are fp32: checkpoints go from one precision to another",
    "bf16.immediate_grad_update": "acts on one of DeepSpeed's optimizers only, which is not used here",
    "bf16.check_grad_overflow": "a gradient that is not finite always ends the run before its update",
    "data_types.param_dtype": "set by fp16 or bf16",
    "data_types.buffer_dtype": "set by fp16 or bf16",
    "data_types.keep_in_fp32_modules": "the losses and the softmax are computed in fp32 as they are",
    "activation_checkpointing.number_checkpoints": "every layer is a checkpoint",
    "zero_optimization.cpu_offload": "renamed by DeepSpeed: use zero_optimization.offload_optimizer",
    "zero_optimization.cpu_offload_param": "the models here fit every GPU; offload_optimizer saves more",
    "zero_optimization.cpu_offload_use_pin_memory": "renamed by DeepSpeed: use offload_optimizer.pin_memory",
    "zero_optimization.offload_param": "the models here fit every GPU; offload_optimizer saves more",
    "zero_optimization.offload_optimizer.nvme_path": _NVME,
    "zero_optimization.offload_optimizer.buffer_count": _NVME,
    "zero_optimization.offload_optimizer.pipeline_read": _NVME,
    "zero_optimization.offload_optimizer.pipeline_write": _NVME,
    "zero_optimization.offload_optimizer.fast_init": _NVME,
    "zero_optimization.offload_optimizer.ratio": "acts on DeepSpeed's own Adam, which is not used here",
    "zero_optimization.offload_optimizer.super_offload": "acts on DeepSpeed's own Adam, which is not used here",
    "zero_optimization.offload_optimizer.cpuadam_cores_perc": "acts on DeepSpeed's own Adam, which is not used here",
    "zero_optimization.stage3_module_granularity_threshold": "DeepSpeed 0.19.8 fails with it on a CPU",
    "zero_optimization.elastic_checkpoint": "checkpoints go from any number of ranks to any other as they are",
    "zero_optimization.load_from_fp32_weights": "a resumed run always takes the fp32 weights",
    "zero_optimization.pipeline_loading_checkpoint": "the run reads its own checkpoints",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "checkpoints hold the fp32 weights in full",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "checkpoints hold the fp32 weights in full",
    "zero_optimization.save_muon_momentum_buffer_in_memory": "acts on another optimizer",
    "zero_optimization.compute_grad_norm": "the norm is always computed: it clips, and finds what is not finite",
    "zero_optimization.ignore_unused_parameters": "every parameter takes part in every step",
    "zero_optimization.legacy_stage1": "removed from DeepSpeed: use stage 1",
    "zero_optimization.parameter_alignment": _OTHER_ZERO,
    "zero_optimization.zenflow": "it changes what is trained",
    "zero_optimization.zero_hpz_partition_size": _OTHER_ZERO,
    "zero_optimization.zero_quantized_weights": "it changes what is trained",
    "zero_optimization.zero_quantized_nontrainable_weights": "it changes what is trained",
    "zero_optimization.zero_quantized_gradients": "it changes what is trained",
    "zero_optimization.memory_efficient_linear": _OTHER_ZERO,
    "zero_optimization.override_module_apply": _OTHER_ZERO,
    "zero_optimization.stage3_use_all_reduce_for_fetch_params": _OTHER_ZERO,
    "zero_optimization.stage3_allgather_sequential": _OTHER_ZERO,
    "zero_optimization.log_trace_cache_warnings": _OTHER_ZERO,
    "zero_optimization.enable_sanity_checks": _OTHER_ZERO,
    "zero_optimization.leaf_module": _OTHER_ZERO,
}
"""Keys of DeepSpeed that mean something there and have another owner here, with what to do instead."""
