"""Loads DeepSpeed configurations by short names such as zero2_fp32: shipped files, some with overrides."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from pretrain.engine.deepspeed_config import read
from pretrain.engine.deepspeed_keys import DeepSpeedConfig, Section
from tests.conftest import REPOSITORY

ADDED = {
    "accumulate": ("deepspeed.train_micro_batch_size_per_gpu=8",),
    "offload": ("deepspeed.zero_optimization.offload_optimizer.device=cpu",),
    "recompute": ("deepspeed.activation_checkpointing={}",),
}
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{f"zero1_bf16_{name}": ("zero1_bf16", added) for name, added in ADDED.items()},
    "zero1_fp16_offload": ("zero1_fp16", ADDED["offload"]),
    "zero1_bf16_overlap": ("zero1_bf16", ("deepspeed.zero_optimization.overlap_comm=true",)),
    **{
        f"zero2_{kind}": (f"zero1_{kind}", ("deepspeed.zero_optimization.stage=2",))
        for kind in ("fp16", "bf16", "fp32")
    },
    "zero3_fp32": ("zero3_bf16", ("deepspeed.bf16=null",)),
}
"""Short names of a shipped file with overrides."""


def values_of(name: str) -> dict[str, Any]:
    """A copy of the configuration, which may be changed or written to a file."""
    base, overrides = VARIANTS.get(name, (name, ()))
    return read(REPOSITORY / "ds_configs" / f"{base}.json", overrides).model_dump(exclude_none=True)


def taken(schema: type[BaseModel] = DeepSpeedConfig, path: str = "") -> Iterator[str]:
    """Paths of all keys in our own schema."""
    for name, field in schema.model_fields.items():
        yield path + name
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, Section):
                yield from taken(part, f"{path}{name}.")
