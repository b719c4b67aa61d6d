"""The profile of `bench/gpu.py`: the time of a training step by operation."""

from pathlib import Path

import torch

from bench.gpu_checks import engine_step
from bench.gpu_setting import new_batch, setting
from bench.models import CONFIGS, fresh_model, new_engine
from pretrain.presets import preset, with_objective

PROFILED_STEPS = 3


def run_profile(device: str, output: Path) -> int:
    """Writes a table by operation and a trace for chrome://tracing."""
    where = setting(device)
    if device == "cuda":
        where = where._replace(run=preset("base").run, batch_size=32, length=512)
    torch.manual_seed(0)
    model = fresh_model(with_objective(where.run, "hp_loss"), where.vocabulary)
    engine = new_engine(model, where.run, CONFIGS / "zero1_bf16.json", where.batch_size, where.world)
    batch = new_batch(where)
    for _ in range(2):
        engine_step(engine, batch)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for _ in range(PROFILED_STEPS if device == "cuda" else 1):
            engine_step(engine, batch)
    table = profile.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=40, max_name_column_width=60)
    (output / "profile.txt").write_text(table)
    profile.export_chrome_trace(str(output / "trace.json.gz"))
    print(f"wrote profile.txt and trace.json.gz ({(output / 'trace.json.gz').stat().st_size / 1e6:.1f} MB)")
    return 0
