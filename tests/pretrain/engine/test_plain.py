"""Claims about plain PyTorch at stage 0 and about the gradient norm; test_engine.py compares it with ZeRO."""

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pretrain.engine.plain import CHUNK, squared_norm
from tests.conftest import REPOSITORY


def test_no_job_at_stage_0_imports_deepspeed() -> None:
    program = """
import sys
import torch
from pretrain.engine.engine import backend_for
from pretrain.job.processes import World
from tests.pretrain.engine import engine_worker as worker

for world_size in (1, 2):
    model, world = worker.small_model(), World(0, world_size, torch.device("cpu"))
    config = worker.resolved_config("zero0_fp32", world_size)
    backend = backend_for(model, [{"params": model.parameters()}], config, world)
    assert type(backend).__name__ == "Plain" and not any(name.partition(".")[0] == "deepspeed" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)


def of_all_sizes(dtype: torch.dtype) -> list[Tensor]:
    """Gradients without a dimension, empty, transposed, beyond a chunk, and of the largest values of bf16."""
    shapes = [(), (0,), (3,), (7, 5), (CHUNK // 512, 512), (CHUNK // 512 + 1, 513)]
    torch.manual_seed(0)
    *gradients, last = (torch.randn(shape).to(dtype) for shape in shapes)
    return [*gradients, last.T]


LARGEST = torch.finfo(torch.bfloat16).max


@pytest.mark.parametrize(
    "gradients",
    [
        lambda: of_all_sizes(torch.float32),
        lambda: of_all_sizes(torch.bfloat16),
        lambda: of_all_sizes(torch.float16),
        lambda: of_all_sizes(torch.float64),
        lambda: [torch.full((10,), LARGEST, dtype=torch.bfloat16)],
    ],
    ids=["fp32", "bf16", "fp16", "fp64", "the largest of bf16"],
)
def test_squares_are_summed_as_in_float64(gradients: Callable[[], list[Tensor]], device: torch.device) -> None:
    parts = gradients()
    expected = torch.cat([part.flatten().double() for part in parts]).square().sum()
    found = squared_norm(parts)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected.item(), rel=1e-12 if device.type == "cpu" else 1e-9)


def test_the_norm_does_not_depend_on_the_division_into_tensors() -> None:
    gradients = of_all_sizes(torch.bfloat16)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    shared = [squared_norm(list(flat.split(size))) for size in (1000, CHUNK - 1, len(flat))]
    assert {part.sqrt().float().item() for part in shared} == {squared_norm(gradients).sqrt().float().item()}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, CHUNK, CHUNK + 4])
def test_a_single_value_that_is_not_finite_is_noticed_anywhere(value: float, place: int, device: torch.device) -> None:
    gradient = torch.zeros(CHUNK + 5, dtype=torch.bfloat16)
    gradient[place] = value
    assert not squared_norm([torch.ones(3, dtype=torch.bfloat16), gradient]).isfinite()


def test_the_norm_of_no_gradients_is_zero() -> None:
    assert squared_norm([]) == 0
