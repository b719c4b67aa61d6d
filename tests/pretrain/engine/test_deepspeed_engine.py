"""pretrain/engine/deepspeed_engine.py: parameters partitioned by stage 3 are gathered again."""

import torch
from torch import nn

from pretrain.engine import deepspeed_engine
from pretrain.engine.engine import MOMENTS
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import start_processes
from tests.pretrain.engine import engine_worker as worker


@torch.no_grad()
def test_partitioned_parameters_are_gathered_as_a_whole() -> None:
    """Covers one rank; engine_worker.py covers two ranks with padded partitions."""
    model, world = nn.Linear(3, 5), start_processes()
    config = worker.resolved_config("zero3_fp32", world_size=1)
    engine = deepspeed_engine.start(model, parameter_groups(model, 0.01), config, world)
    for master in engine.optimizer.fp32_partitioned_groups_flat:
        engine.basic_optimizer.state[master] |= {key: torch.zeros_like(master) for key in MOMENTS}
    for moment in (None, *MOMENTS):
        full = torch.randn(5, 3)
        deepspeed_engine.divide(model.weight, moment, full, world)
        assert torch.equal(deepspeed_engine.whole(model.weight, moment), full)
