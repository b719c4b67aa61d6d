"""The parts of `bench/gpu.py` by stage, the most valuable first: each is one process with a time limit."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from electra_sampler.foundation.command_line import HIDDEN
from electra_sampler.foundation.config import StrictConfig

Stage = Literal["a", "b", "c", "d", "e", "f"]
STAGES: dict[Stage, str] = {
    "a": "checks",
    "b": "steps",
    "c": "ablation",
    "d": "profile",
    "e": "training",
    "f": "study",
}
SHAPES = {
    "cuda": (("base", 512, 32), ("small", 128, 128), ("modern_base", 512, 32), ("small", 512, 128)),
    "cpu": (("tiny", 32, 2),),
}
"""Preset, length and batch size (large enough to keep a large GPU busy), the most informative first."""
STEPS = {"cuda": "10", "cpu": "1"}
CONTENDERS = {
    "cuda": (
        ("hp_loss", "eager", "compiled"),
        ("hp_loss", "eager", "electra", "compiled"),
        ("hp_loss", "eager"),
        ("hp_loss",),
    ),
    "cpu": (("hp_loss", "electra", "eager"),),  # compiling takes a minute
}
"""Contenders for each shape, in order; they run one after another because a GPU's memory would not hold them all."""
GPU_TESTS = (
    *("tests/gpu", "tests/pretrain/engine/test_plain.py", "tests/pretrain/training/test_telemetry.py"),
    *("tests/pretrain/model/test_distribution.py", "tests/pretrain/model/kernels/test_triton_attention.py"),
)
LIMIT = 540
"""Time limit in seconds of the study and, on a CPU, which is slow, of every part."""
WARM_UP_SHARE = 0.75
"""Share of a contender's time allowed for start-up and compilation."""


PASSED_ON = ("output", "device", "data", "work", "study", "study_scale")
"""Options that are passed on to the process of a part."""


class GpuOptions(StrictConfig):
    """The command line of `bench/gpu.py`."""

    output: Path = Path("bench/results/gpu")
    """folder of the results: a JSON file per stage, logs/, trace.json.gz"""
    stages: tuple[Stage, ...] = tuple(STAGES)
    """a checks, b steps, c ablation, d profile, e training, f study; always in this order"""
    minutes: float = Field(default=9, gt=0)
    """time limit of this call; the next one continues"""
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu rehearses on tiny shapes; its timings mean nothing"""
    data: Path | None = None
    """shards from build_shards.py, needed by stages a, e and f"""
    work: Path = Path("runs/gpu")
    """folder of runs and checkpoints, which stay on this machine"""
    study: Path = Path("bench/studies/samplers_gpu.json")
    """the study of stage f"""
    study_scale: float = Field(default=0.1, gt=0, le=1)
    """share of the study's steps and held-out sequences"""
    inside: Annotated[str | None, HIDDEN] = None
    """part to run in this process"""

    def product(self, part: str) -> Path:
        """Returns the file in which a part leaves its results so far."""
        return self.work / f"{part.replace(' ', '-')}.json"


class Part(NamedTuple):
    """A part of a stage: a process that may be stopped at its time limit and continues in the next call."""

    stage: Stage
    name: str
    command: tuple[str, ...]
    seconds: float
    """Time limit per call."""
    needs: tuple[str, ...] = ()
    """Packages that must be installed; "data" means that --data must be given."""
    warm_up: bool = False
    """Whether the command is bench/step.py, which takes a limit for the contenders' first step."""

    def missing(self, options: GpuOptions) -> str:
        """Returns why the part cannot run here; empty if it can."""
        if "data" in self.needs and options.data is None:
            return "needs shards: give --data"
        absent = [name for name in self.needs if name != "data" and find_spec(name) is None]
        return f"needs {' and '.join(absent)}, not installed here" if absent else ""


def half_precision(device: str) -> Literal["bf16", "fp16"]:
    """Returns the half precision that is measured: bf16, except on a GPU without it (V100)."""
    import torch

    lacks = device == "cuda" and torch.cuda.is_available() and not torch.cuda.is_bf16_supported(False)
    return "fp16" if lacks else "bf16"


def all_parts(options: GpuOptions) -> Iterator[Part]:
    """Yields the parts of all stages in order; within a stage, fp32 comes last, as it takes longest."""
    python, device = sys.executable, options.device
    given = [word for name, value in options if name in PASSED_ON and value for word in (f"--{name}", str(value))]
    inside = (python, "bench/gpu.py", *given, "--inside")

    def part(stage: Stage, name: str, seconds: float, *needs: str) -> Part:
        return Part(stage, name, (*inside, name), seconds if device == "cuda" else LIMIT, needs)

    half = half_precision(device)
    precisions = dict.fromkeys((half, "fp16", "fp32"))
    tests = ("env", f"TRITON_INTERPRET={int(device == 'cpu')}", f"GPU_TESTS_ON={device}", python, "-m", "pytest")
    yield Part("a", "tests", (*tests, "-v", "-m", "gpu", *GPU_TESTS), 300 if device == "cuda" else LIMIT, ("pytest",))
    yield part("a", f"bits {half}", 200, "data", "deepspeed")
    yield part("a", "zero", 300, "data", "deepspeed")
    for precision in [*precisions][1:]:
        yield part("a", f"bits {precision}", 200, "data", *needed(precision))
    yield part("b", "rates", 30)
    rivals = [(shape, name) for shape, names in zip(SHAPES[device], CONTENDERS[device], strict=True) for name in names]
    for (preset, length, batch_size), name in sorted(rivals, key=lambda rival: rival[1] == "compiled"):  # slow to start
        command: tuple[str, ...] = (python, "bench/step.py", "--preset", preset, "--seq_length", str(length))
        command += ("--batch_size", str(batch_size), "--steps", STEPS[device], "--contenders", name)
        command += ("--dtype", half) if device == "cuda" else ()
        limit = LIMIT if device == "cpu" else 150 if name == "compiled" else 75
        needs = ("deepspeed", "transformers")
        yield Part("b", f"step {preset} {length} {name}", command, limit, needs, warm_up=True)
    for preset, length, _ in SHAPES[device][:3]:
        yield part("c", f"ablation {preset} {length}", 100, "deepspeed")
    for preset, length, _ in SHAPES[device][:3]:
        yield part("d", f"profile {preset} {length}", 40, "deepspeed")
    for precision in precisions:
        yield part("e", f"training {precision}", 80, "data", *needed(precision))
    yield part("f", "study", LIMIT, "data", "deepspeed", "matplotlib", "scipy")


def needed(precision: str) -> tuple[str, ...]:
    return () if precision == "fp32" else ("deepspeed",)
