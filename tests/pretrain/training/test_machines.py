"""Claims about the machines that forecasts are for."""

import json
import re
from pathlib import Path
from statistics import median

import pytest
import torch

from electra_sampler.foundation.config import ConfigError
from pretrain.job.processes import start_processes
from pretrain.planning.estimates import GPUS, Sizes, step_seconds, this_machine
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import Plan, make_plan
from pretrain.presets import TINY, preset
from tests.conftest import REPOSITORY


def planned(shards: Path, folder: Path, **options: object) -> Plan:
    values = {"data": (shards,), "dry_run": True, "output": folder / "run", **options}
    return make_plan(RunOptions.from_values(values))


TINY_SIZES = Sizes(TINY, 2048, 64)


def test_this_machine_is_measured_alone_and_in_a_job(plain_ops: None) -> None:
    alone, together = this_machine(TINY_SIZES, "fp32"), this_machine(TINY_SIZES, "fp32", 1, start_processes())
    for machine in (alone, together):
        assert 1e8 < machine.flops < 4 * machine.products < 1e14  # other processes may slow down either
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
    narrow = min(1.0, plan.run.model.hidden_size / GPUS[gpu, precision].width)
    assert machine.name == f"1 {gpu.upper()}" and machine.flops == GPUS[gpu, precision].flops * narrow
    padded = plan.sizes.flops * plan.run.batch_size * plan.shards.manifest.seq_length / machine.flops
    assert plan.seconds(machine, 2) > 2 * padded, "padding and the host's time count"


def of_paper(preset_name: str, gpu: str, processes: int, length: int, *, batch: int = 0, graphs: bool = False) -> float:
    """The forecast seconds of a step of a preset that trains on GPUs of this name, without reports."""
    run = preset(preset_name)
    rows = batch or run.batch_size
    machine = next(found for (name, kind), found in GPUS.items() if name == gpu and kind != "fp32")
    flops = processes * machine.flops * min(1.0, run.model.hidden_size / machine.width)
    return step_seconds(Sizes(run, 30_522, length), machine._replace(flops=flops), rows * length, processes, 1, graphs)


def test_forecasts_agree_with_what_an_h100_took_and_with_the_papers_days() -> None:
    """The table of docs/evidence/speed.md, from the committed results."""
    results = REPOSITORY / "bench/results/h100"
    ablation = json.loads((results / "c-ablation.json").read_text())
    steps = {name.removeprefix("ablation "): found["found"] for name, found in ablation.items()}
    lines = []
    for name, length, rows, row, other in (
        ("base", 512, 32, "as shipped", "without CUDA graphs"),
        ("small", 128, 128, "as shipped", "without CUDA graphs"),
        ("modern_base", 512, 32, "rotation and gated GELU compiled, as shipped", None),
    ):
        for graphs, part in ((True, row), (False, other)):
            if part:
                took = [of["seconds"] for label, of in steps[f"{name} {length}"].items() if label.startswith(part)]
                forecast = of_paper(name, "h100", 1, length, batch=rows, graphs=graphs)
                assert all(1 / 1.3 < forecast / seconds < 1.3 for seconds in took), (name, graphs, forecast, took)
                measured = ", ".join(f"{1e3 * seconds:.1f}" for seconds in took)
                replayed = "CUDA graphs" if graphs else "no graphs"
                lines.append(f"| {name}, {rows} x {length}, one H100, {replayed} | {measured} | {1e3 * forecast:.1f} |")
    training = json.loads((results / "e-training.json").read_text())["training bf16"]["found"]["curve"]
    took = 128 * 128 * (1 - 0.46) / median(point["tokens_per_second"] for point in training)
    graphed, eager = (of_paper("small", "h100", 1, 128, graphs=graphs) for graphs in (True, False))
    forecast = 0.9 * graphed + 0.1 * eager
    assert 1 / 1.3 < forecast / took < 1.3
    lines.append(
        f"| small, 128 x 128, one H100, training, every 10th step reports | {1e3 * took:.1f} | {1e3 * forecast:.1f} |"
    )
    for name, processes, days in (("small", 8, 3), ("base", 16, 5)):
        forecast = of_paper(name, "v100", processes, 512, graphs=True) * preset(name).optim.steps / 86_400
        assert days / 3 <= forecast <= days
        lines.append(f"| {name}, the paper's run on {processes} V100 | under {days} days | {forecast:.1f} days |")
    page = (REPOSITORY / "docs/evidence/speed.md").read_text()
    road = (REPOSITORY / "docs/guide/reproduce.md").read_text()
    for name in ("small", "base"):
        found = (
            of_paper(name, gpu, processes, 512, graphs=True) * preset(name).optim.steps / 86_400
            for gpu, processes in (("v100", 8), ("v100", 16), ("a100", 8), ("h100", 8))
        )
        (row,) = (line for line in road.splitlines() if f"SQuAD, {name}: " in line)
        assert [f"{days:.1f}" for days in found] == re.findall(r"\d\.\d", row), row
    assert not [line for line in lines if line not in page], "\n".join(lines)


def test_a_speed_that_nobody_has_published_is_not_made_up(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^forecast: got a100 with fp32, for which no speed is published"):
        planned(shards_folder, tmp_path, forecast="a100", deepspeed_config="zero1_fp32").machine()
