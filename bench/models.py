"""Builds the models and engines that the benchmarks train."""

from pathlib import Path
from typing import Any

from bench.batches import MASK, VOCABULARY
from pretrain.config import RunConfig
from pretrain.engine.deepspeed_config import Source, resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import World
from pretrain.method.electra import Electra
from pretrain.method.registry import objective_class

CONFIGS = Path(__file__).resolve().parents[1] / "ds_configs"


def fresh_model(run: RunConfig, vocabulary: int = VOCABULARY, mask: int = MASK) -> Any:
    """Returns the untrained model of a run."""
    return objective_class(run.objective.name)(run.model, run.objective, vocabulary, mask)


def new_engine(model: Electra, run: RunConfig, config: Source, batch_size: int, world: World) -> Engine:
    """Returns an engine that trains `model` with the optimizer of `run`; `batch_size` is the total over all ranks.

    Raises:
        ConfigError: the file does not suit the machine or the batch.
    """
    resolved = resolve(
        config,
        batch_size=batch_size,
        world_size=world.world_size,
        device_type=world.device.type,
        clipping=run.optim.gradient_clipping,
    )
    return Engine(model, parameter_groups(model, run.optim.weight_decay), resolved, world, few_shapes=True)
