"""The fixtures of pre-training, for samplers in files of their own, and tiny models for shards."""

from typing import Any

from pretrain.data.shards import Shards
from pretrain.method.registry import objective_class
from pretrain.presets import PRESETS
from pretrain.runs.models import build_model
from tests.pretrain.conftest import batch, make_electra, shards
from tests.pretrain.runs.described import described

__all__ = ["batch", "make_electra", "shards"]


def model_of(shards: Shards, name: str, **switches: Any) -> Any:
    """A tiny model whose initial weights depend only on the seed."""
    config = objective_class(name).Config.from_values(switches)
    return build_model(described(PRESETS["tiny"].model_copy(update={"objective": config}), shards)).eval()
