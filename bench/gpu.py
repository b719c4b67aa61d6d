"""All that needs a GPU, in one command of at most ten minutes: correctness, the table of `bench/step.py`, a profile.

    python bench/gpu.py --output bench/results/h200 [--device cpu]

Each part is a process of its own with its share of the time: one that fails or stands still is recorded and ended, and
the others go on. Ends with 1 if any check or part failed. With `--device cpu` it goes as far as it can on tiny shapes
and says what it skipped. Tables and profile are in bf16, for an A100 or later.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from data_prep.command_line import HIDDEN, run_command
from data_prep.config import StrictConfig

REPOSITORY = Path(__file__).resolve().parents[1]
STEP = (sys.executable, "bench/step.py")
STEP_SHAPES = {
    "cuda": (("base", 512, 32), ("small", 128, 128), ("small", 512, 128), ("base", 128, 128)),
    "cpu": (("tiny", 32, 2),),
}
"""Preset, length and sequences: as many as keep a large GPU busy; the most telling first."""
STEP_OPTIONS = {
    "cuda": ("--dtype", "bf16", "--steps", "10"),
    "cpu": ("--steps", "1", "--contenders", "eager", "electra", "hp_loss", "hp_dist"),  # compiling takes a minute
}
CHECKS, RESULTS, LOG = "checks.json", "results.json", "log.txt"

PartName = Literal["checks", "step", "profile"]


class GpuOptions(StrictConfig):
    """The command line of the script."""

    output: Path = Path("bench/results/gpu")
    """folder for what was seen"""
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu: tiny shapes, no speed"""
    minutes: float = Field(9.5, gt=0)
    """after which nothing runs any more"""
    parts: tuple[PartName, ...] = ("checks", "step", "profile")
    """of the whole, in this order"""
    inside: Annotated[PartName | None, HIDDEN] = None
    """this process is the part"""


class Part(NamedTuple):
    """A process with its share of the time."""

    name: str
    command: tuple[str, ...]
    share: float
    """Of the whole; what is left of one part is there for the next."""


def main(options: GpuOptions) -> int:
    if options.inside:
        from bench.gpu_checks import run_checks
        from bench.gpu_profile import run_profile

        return {"checks": run_checks, "profile": run_profile}[options.inside](options.device, options.output)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / CHECKS).unlink(missing_ok=True)
    deadline = time.monotonic() + 60 * options.minutes
    results: dict[str, Any] = {"command": " ".join(sys.argv), "machine": machine(options.device), "parts": {}}
    with (options.output / LOG).open("w") as log:
        for part, seconds in with_seconds(list(chosen_parts(options)), deadline):
            print(f"{part.name}: at most {seconds:.0f} s", flush=True)
            results["parts"][part.name] = run_part(part, seconds, log)
            write_results(options.output, results)
    print((options.output / LOG).read_text())
    failed = failures(results)
    print("failed: " + ", ".join(failed) if failed else "nothing failed")
    return 1 if failed else 0


def chosen_parts(options: GpuOptions) -> Iterator[Part]:
    """Correctness, the tables, the profile."""
    inside = (sys.executable, "bench/gpu.py", "--device", options.device, "--output", str(options.output), "--inside")
    if "checks" in options.parts:
        yield Part("checks", (*inside, "checks"), 0.3)
    if "step" in options.parts:
        for name, length, batch_size in STEP_SHAPES[options.device]:
            shape = ("--preset", name, "--seq_length", str(length), "--batch_size", str(batch_size))
            yield Part(f"step {name} {length}", (*STEP, *shape, *STEP_OPTIONS[options.device]), 0.14)
    if "profile" in options.parts:
        yield Part("profile", (*inside, "profile"), 0.14)


def with_seconds(parts: list[Part], deadline: float) -> Iterator[tuple[Part, float]]:
    """Each part, as its turn comes, with its share of the time that is left."""
    for number, part in enumerate(parts):
        share = part.share / sum(later.share for later in parts[number:])
        yield part, max(1.0, share * (deadline - time.monotonic()))


def run_part(part: Part, seconds: float, log: Any) -> dict[str, Any]:
    """Runs it to its end or for so many seconds; its output goes into the log."""
    log.write(f"\n== {part.name}: {' '.join(part.command[1:])}\n")
    log.flush()
    started = time.monotonic()
    process = subprocess.Popen(part.command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True)
    try:
        code: int | str = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it started
        process.wait()
        code = f"ended after {seconds:.0f} s"
        log.write(f"{code}\n")
    return {"command": " ".join(part.command[1:]), "exit": code, "seconds": round(time.monotonic() - started, 1)}


def machine(device: str) -> dict[str, Any]:
    """What it runs on."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else platform.machine()
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}


def write_results(folder: Path, results: dict[str, Any]) -> None:
    """So far: what comes later may not come."""
    checks = folder / CHECKS
    whole = results | ({"checks": json.loads(checks.read_text())} if checks.exists() else {})
    results |= whole
    (folder / RESULTS).write_text(json.dumps(whole, indent=1) + "\n")


def failures(results: dict[str, Any]) -> list[str]:
    """Names of the parts and checks that failed."""
    parts = [name for name, part in results["parts"].items() if part["exit"] != 0]
    return parts + [check["name"] for check in results.get("checks", ()) if check["outcome"] == "failed"]


if __name__ == "__main__":
    sys.exit(run_command(main, GpuOptions, __doc__))
