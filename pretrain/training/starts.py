"""The record of each start of a run in RUN/starts.jsonl: hardware, code and environment."""

import json
import os
import platform
import socket
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch

from foundation.files import ROOT
from pretrain.engine.engine import Engine

STARTS = "starts.jsonl"
PREFIXES = ("CUDA_", "NCCL_", "TORCH_", "DS_", "OMP_", "SLURM_JOB", "MASTER_", "PYTORCH_")
"""Prefixes of the environment variables recorded: variables that can change speed, memory or results."""


def record_start(folder: Path, engine: Engine, step: int, matrix_peak: float, fp32_peak: float | None) -> None:
    """Appends the record of this start, at `step`, to the run folder; first rank only.

    `matrix_peak` is in FLOP/s over all ranks in the run's precision, `fp32_peak` on CPUs in fp32.
    """
    cuda = engine.device.type == "cuda"
    record = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "processes": engine.world.world_size,
        "first_host": socket.gethostname(),
        "device": torch.cuda.get_device_name(engine.device) if cuda else platform.processor() or platform.machine(),
        "precision": str(engine.dtype).removeprefix("torch."),
        "zero_stage": engine.config.stage,
        "micro_batch_size": engine.config.micro_batch_size,
        "accumulation_steps": engine.config.accumulation_steps,
        "matrix_peak_tflops": matrix_peak / 1e12,
        **({"fp32_peak_tflops": fp32_peak / 1e12} if fp32_peak else {}),
        "code": code_version(),
        "cuda": torch.version.cuda,
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith(PREFIXES)},
    }
    with (folder / STARTS).open("a") as file:
        file.write(json.dumps(record) + "\n")


def code_version(repository: Path = ROOT) -> str | None:
    """Returns this code's commit, with "+ changes" if tracked files differ from it; `None` outside a repository."""
    if not (repository / ".git").exists():  # installed, perhaps inside an unrelated repository
        return None
    question = ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= + changes")
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(["git", "-C", repository, *question], capture_output=True, text=True, timeout=10)
        return asked.stdout.strip() or None
    return None
