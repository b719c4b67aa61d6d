"""DeepSpeed's values by a short name, such as zero2_fp32: a file of ds_configs/, or what replaces a removed one."""

from typing import Any

from pretrain.engine.deepspeed_config import REMOVED_FILES, read
from tests.conftest import REPOSITORY


def values_of(name: str) -> dict[str, Any]:
    """A copy, to be changed or written to a file."""
    base, overrides = REMOVED_FILES.get(name, (name, ()))
    return read(REPOSITORY / "ds_configs" / f"{base}.json", overrides).model_dump(exclude_none=True)
