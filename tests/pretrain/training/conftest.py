"""An engine and whole runs for the tests of training, in this process."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import OptimConfig, parameter_groups
from pretrain.job.processes import start_processes
from pretrain.job.watchdog import Watchdog
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.training.start import build_training, measured_machine
from pretrain.training.train import Training
from tests.deepspeed_values import values_of


def make_engine(model: nn.Module, **optim: object) -> Engine:
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


@contextmanager
def built(options: RunOptions) -> Iterator[Training]:
    """A run that is ready to train."""
    plan, world = make_plan(options), start_processes()
    with Watchdog(world, 120, plan.folder) as watchdog:
        yield build_training(plan, measured_machine(plan, world), world, watchdog)
