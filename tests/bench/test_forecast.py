"""Claims about forecasts: they follow from work and rates, and reproduce the published figures they are based on."""

import subprocess
import sys
from functools import partial

import pytest
import torch

from bench.batches import VOCABULARY, random_batch
from bench.engine import engine_step, new_model, operations
from bench.forecast import (
    DAY,
    GOOGLE_V100,
    H100_8,
    KERNELS,
    LAUNCH,
    NVIDIA_A100,
    NVIDIA_V100,
    RTX_3090,
    V100_8,
    V100_16,
    Cluster,
    Costs,
    Work,
)
from bench.forecast import forecast as forecast_of
from bench.models import CONFIGS, new_engine
from pretrain.job.processes import start_processes
from pretrain.model import cpu_ops
from pretrain.presets import preset, with_objective
from tests.conftest import REPOSITORY

COSTS = Costs(token=1e-3, pair=1e-6, score=1e-8, update=1e-9, sent_byte=1e-9)
A100 = Cluster(1, "A100", 312e12, 1e12, "NVIDIA A100 data sheet")
V100 = Cluster(1, "V100", 125e12, 1e12, "NVIDIA V100 data sheet")
GEFORCE = Cluster(1, "RTX 3090", 71e12, 1e12, "NVIDIA Ampere GA102 whitepaper, fp16 with fp32 sums")


def test_a_step_is_the_sum_of_its_kinds_of_work() -> None:
    work = Work(tokens=1000, length=100, vocabulary=500)
    assert work.scores == 10 * 15 * 500
    assert COSTS.seconds(work, 10**6) == pytest.approx(1 + 0.1 + 75_000e-8 + 1e-3)


def test_each_of_two_processes_updates_half_and_exchanges_the_minimum_of_zero_1() -> None:
    work = Work(tokens=1000, length=100, vocabulary=500)
    alone, shared = COSTS.seconds(work, 10**6), COSTS.seconds(work, 10**6, processes=2)
    assert shared - alone == pytest.approx(4e6 * 1e-9 - 1e-3 / 2)


@pytest.mark.parametrize(
    ("name", "length", "cluster", "share", "sequences_per_second"),
    [
        ("base", 512, V100, NVIDIA_V100, 96),
        ("base", 512, A100, NVIDIA_A100, 171),
        ("small", 128, V100, GOOGLE_V100, 1e6 * 128 / (4 * DAY)),
        ("small", 128, GEFORCE, RTX_3090, 625_000 * 256 / (2.5 * DAY)),
    ],
)
def test_each_assumed_share_reproduces_its_published_throughput(
    name: str, length: int, cluster: Cluster, share: object, sequences_per_second: float
) -> None:
    run = with_objective(preset(name), "electra")
    step = forecast_of(run, 0, length, 30_522, cluster, share)  # type: ignore[arg-type]
    assert run.batch_size / step.computing == pytest.approx(sequences_per_second, rel=0.03)


def test_no_step_is_forecast_to_be_faster_than_its_kernel_launches() -> None:
    step = forecast_of(preset("small"), 0, 128, 30_522, H100_8, RTX_3090)
    assert step.computing == KERNELS * LAUNCH


def kernels_of_a_step() -> int:
    """Operations that a GPU needs too: dropout's factors by one call, half-precision sums by PyTorch itself."""
    cpu_ops.HALF = ()
    cpu_ops.kept = lambda shape, p, dtype: torch.empty(shape, dtype=dtype).bernoulli_(1 - p)
    run, batch = preset("small"), random_batch(1, 128)
    engine = new_engine(new_model(run, VOCABULARY), run, CONFIGS / "zero1_bf16.json", 1, start_processes())
    engine_step(engine, batch)
    return operations(partial(engine_step, engine, batch))


def test_the_assumed_number_of_kernels_is_that_of_a_whole_step() -> None:
    """Counted in a new process, because other tests' hooks and patches would be counted too."""
    code = "from tests.bench.test_forecast import kernels_of_a_step; print('kernels', kernels_of_a_step())"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.rpartition("kernels ")[2]) == pytest.approx(KERNELS, rel=0.05)


def test_the_exchange_takes_as_long_as_the_slowest_link_needs() -> None:
    run = preset("base")
    near = forecast_of(run, 110_000_000, 512, 30_522, V100_8, NVIDIA_V100)
    far = forecast_of(run, 110_000_000, 512, 30_522, V100_16, NVIDIA_V100)
    assert far.exchanging == pytest.approx(2 * 15 / 16 * 110e6 * 2 / 12.5e9)
    assert far.computing == pytest.approx(near.computing / 2)
    assert far.days == pytest.approx(765_000 * (far.computing + far.exchanging) / DAY)
