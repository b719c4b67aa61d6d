"""A plain PyTorch replacement for DeepSpeed's engine, for one process at stage 0, which does not need DeepSpeed.

It does the same arithmetic in the same order, so results and checkpoints are bitwise equal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.job.processes import World

SERVED_KEYS = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("optimizer", "zero_optimization", "activation_checkpointing", "timers"),
}
"""DeepSpeed's keys that plain PyTorch handles; any other, such as the profiler's, needs DeepSpeed."""


def is_enough(config: EngineConfig, world: World) -> bool:
    """Returns true if plain PyTorch can run the job: one process, stage 0, and only `SERVED_KEYS`."""
    return config.json.keys() <= SERVED_KEYS and config.stage == 0 and world.world_size == 1


class PlainEngine:
    """Stands in for a `deepspeed.DeepSpeedEngine`: the methods that `Engine` calls, under the same names."""

    def __init__(
        self, model: nn.Module, parameter_groups: Sequence[Mapping[str, Any]], config: EngineConfig, world: World
    ) -> None:
        self.module = model.to(world.device)
        numbers = {key: value for key, value in config.json["optimizer"]["params"].items() if key != "torch_adam"}
        self.optimizer = self.basic_optimizer = torch.optim.AdamW([{**group} for group in parameter_groups], **numbers)
        self._micro_batches, self._done = config.accumulation_steps, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        (loss / self._micro_batches).backward()

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self._done + 1) % self._micro_batches == 0

    def step(self) -> None:
        if self.is_gradient_accumulation_boundary():
            self.optimizer.step()
            self.zero_grad()
        self._done += 1

    def zero_grad(self) -> None:
        self.module.zero_grad(set_to_none=True)
