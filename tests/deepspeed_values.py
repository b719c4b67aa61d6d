"""Loads DeepSpeed configurations by short names such as zero2_fp32, including those that overrides have replaced."""

from typing import Any

from pretrain.engine.deepspeed_config import REMOVED_FILES, read
from tests.conftest import REPOSITORY


def values_of(name: str) -> dict[str, Any]:
    """A copy of the configuration, which may be changed or written to a file."""
    base, overrides = REMOVED_FILES.get(name, (name, ()))
    return read(REPOSITORY / "ds_configs" / f"{base}.json", overrides).model_dump(exclude_none=True)
