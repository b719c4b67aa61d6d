"""Stage d of `bench/gpu.py`: the time of a training step by kernel."""

from contextlib import ExitStack
from pathlib import Path

import torch

from bench.gpu.ablation import Switch, new_step, shaped
from bench.gpu.items import keep
from bench.gpu.parts import SHAPES, GpuOptions
from pretrain.engine.hardware import compute_deterministically

PROFILED_STEPS = 3
LISTED = 60


def run_profile(options: GpuOptions, shape: str, product: Path) -> int:
    """Records every kernel's share of a step's time and, for the first shape, a trace for chrome://tracing."""
    compute_deterministically()  # as a run does
    on_gpu = options.device == "cuda"
    step = new_step(shaped(options.device, shape), Switch(), ExitStack())
    for _ in range(3):
        step()
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for _ in range(PROFILED_STEPS if on_gpu else 1):
            step()
    kernels = [event for event in profile.key_averages() if not on_gpu or event.device_type.name == "CUDA"]
    taken = {event.key: event.self_device_time_total if on_gpu else event.self_cpu_time_total for event in kernels}
    whole, calls = sum(taken.values()), {event.key: event.count for event in kernels}
    slowest = sorted(taken, key=lambda name: -taken[name])[:LISTED]
    rows = [
        {"kernel": name, "share": taken[name] / whole, "microseconds": taken[name], "calls": calls[name]}
        for name in slowest
    ]
    for row in rows[:15]:
        print(f"{row['share']:6.1%} {row['calls']:6} {row['kernel'][:90]}")
    keep({"steps": PROFILED_STEPS if on_gpu else 1, "microseconds": whole, "kernels": rows}, product)
    if shape == "{} {}".format(*SHAPES[options.device][0]):
        profile.export_chrome_trace(str(options.output / "trace.json.gz"))
    return 0
