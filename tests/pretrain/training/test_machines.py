"""Claims about the machines that forecasts are for."""

from pathlib import Path

import pytest
import torch

from foundation.config import ConfigError
from pretrain.job.processes import start_processes
from pretrain.presets import TINY
from pretrain.training.estimates import GPUS, Sizes, this_machine
from pretrain.training.options import RunOptions
from pretrain.training.plan import Plan, make_plan


def planned(shards: Path, folder: Path, **options: object) -> Plan:
    values = {"data": (shards,), "dry_run": True, "output": folder / "run", **options}
    return make_plan(RunOptions.from_values(values))


TINY_SIZES = Sizes(TINY, 2048, 64)


def test_this_machine_is_measured_alone_and_in_a_job(plain_ops: None) -> None:
    alone, together = this_machine(TINY_SIZES, "fp32"), this_machine(TINY_SIZES, "fp32", 1, start_processes())
    for machine in (alone, together):
        assert 1e8 < machine.flops < machine.products < 1e14
    assert "core" in alone.name and "timed now" in alone.source
    assert alone.name == together.name and alone.memory == together.memory


def test_measuring_leaves_the_random_state_unchanged(plain_ops: None) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    this_machine(TINY_SIZES, "fp32")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("gpu", "precision"), GPUS)
def test_a_gpu_is_forecast_by_its_published_speed(
    gpu: str, precision: str, shards_folder: Path, tmp_path: Path
) -> None:
    plan = planned(shards_folder, tmp_path, forecast=gpu, deepspeed_config=f"zero1_{precision}")
    machine = plan.machine()
    assert machine.name == f"1 {gpu.upper()}" and machine.flops == GPUS[gpu, precision].flops
    assert plan.seconds(machine.flops, 2) == pytest.approx(2 * plan.flops_per_step / machine.flops)


def test_a_speed_that_nobody_has_published_is_not_made_up(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^forecast: got a100 with fp32, for which no speed is published"):
        planned(shards_folder, tmp_path, forecast="a100", deepspeed_config="zero1_fp32").machine()
