"""An engine for the tests of training."""

from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import OptimConfig, parameter_groups
from pretrain.job.processes import start_processes
from pretrain.method.electra import Electra
from tests.deepspeed_values import values_of


def make_engine(model: Electra, **optim: object) -> Engine:
    """An engine of one process at stage 0, in fp32."""
    settings = OptimConfig.from_values({"lr": 1e-2, "steps": 10, "warmup_steps": 0, **optim})
    config = resolve(
        values_of("zero0_fp32"),
        batch_size=3,
        world_size=1,
        device_type="cpu",
        clipping=settings.gradient_clipping,
    )
    groups = parameter_groups(model, settings.weight_decay, settings.betas, settings.eps)
    return Engine(model, groups, config, start_processes())
