"""Every measurement that needs a GPU, in at most ten minutes: correctness, the tables of `bench/step.py`, a profile.

    python bench/gpu.py --output bench/results/h200 [--device cpu]

Each part runs in its own process with its share of the time. A part that fails or hangs is recorded and killed, and the
others still run; `results.json` keeps all partial results. The exit code is 1 if any check or part failed. Tables and
profile are in bf16, for an A100 or later. `--device cpu` tries the script on tiny shapes and names the skipped checks.
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

from foundation.command_line import HIDDEN, run_command
from foundation.config import StrictConfig
from foundation.files import write_atomically

REPOSITORY = Path(__file__).resolve().parents[1]
STEP = (sys.executable, "bench/step.py")
STEP_SHAPES = {
    "cuda": (("base", 512, 32), ("small", 128, 128), ("small", 512, 128), ("base", 128, 128)),
    "cpu": (("tiny", 32, 2),),
}
"""Preset, length and batch size (large enough to keep a large GPU busy), the most informative first."""
STEP_OPTIONS = {
    "cuda": ("--dtype", "bf16", "--steps", "10"),
    "cpu": ("--steps", "1", "--contenders", "eager", "electra", "hp_loss", "hp_dist"),  # compiling takes a minute
}
WARM_UP_SHARE = 0.6
"""Share of a table's time allowed for start-up and compilation; a slower contender is left out."""
CHECKS, RESULTS, LOG = "checks.json", "results.json", "log.txt"

PartName = Literal["checks", "step", "profile"]


class GpuOptions(StrictConfig):
    """The command line of the script."""

    output: Path = Path("bench/results/gpu")
    """folder for the results"""
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu tries the script on tiny shapes; its timings mean nothing"""
    minutes: float = Field(8.5, gt=0)
    """time limit of the whole command"""
    parts: tuple[PartName, ...] = ("checks", "step", "profile")
    """parts to run, always in this order"""
    inside: Annotated[PartName | None, HIDDEN] = None
    """run this part in this process"""


class Part(NamedTuple):
    """A part of the measurements: a process with its share of the time."""

    name: str
    command: tuple[str, ...]
    share: float
    """Share of the total time; unused time goes to the later parts."""
    product: str | None = None
    """JSON file in the output folder with its results so far."""
    warm_up_share: float = 0.0
    """Share of the part's time that bench/step.py allows for the contenders' first step."""


def main(options: GpuOptions) -> int:
    if options.inside:
        from bench.gpu_checks import run_checks
        from bench.gpu_profile import run_profile

        if options.inside == "checks":
            return run_checks(options.device, options.output / CHECKS)
        return run_profile(options.device, options.output)
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * options.minutes
    results: dict[str, Any] = {"command": " ".join(sys.argv), "machine": machine(options.device), "parts": {}}
    with (output / LOG).open("w") as log:
        for part, seconds in with_seconds(list(chosen_parts(options)), deadline):
            print(f"{part.name}: at most {seconds:.0f} s", flush=True)
            results["parts"][part.name] = run_part(part, seconds, output, log)
            write_atomically(output / RESULTS, json.dumps(results, indent=1).encode() + b"\n")
    print((output / LOG).read_text())
    failed = failures(results)
    print("failed: " + ", ".join(failed) if failed else "nothing failed")
    return 1 if failed else 0


def chosen_parts(options: GpuOptions) -> Iterator[Part]:
    """Yields the chosen parts: checks, tables, profile."""
    names, device, output = options.parts, options.device, options.output.resolve()  # parts run in another folder
    inside = (sys.executable, "bench/gpu.py", "--device", device, "--output", str(output), "--inside")
    if "checks" in names:
        yield Part("checks", (*inside, "checks"), 0.3, CHECKS)
    if "step" in names:
        for preset, length, batch_size in STEP_SHAPES[device]:
            product = f"step-{preset}-{length}.json"
            shape = ("--preset", preset, "--seq_length", str(length), "--batch_size", str(batch_size))
            command = (*STEP, *shape, *STEP_OPTIONS[device], "--output", str(output / product))
            yield Part(f"step {preset} {length}", command, 0.14, product, WARM_UP_SHARE)
    if "profile" in names:
        yield Part("profile", (*inside, "profile"), 0.14)


def with_seconds(parts: list[Part], deadline: float) -> Iterator[tuple[Part, float]]:
    """Yields each part with its weighted share of the time left when its turn comes; at least one second."""
    for number, part in enumerate(parts):
        share = part.share / sum(later.share for later in parts[number:])
        yield part, max(1.0, share * (deadline - time.monotonic()))


def run_part(part: Part, seconds: float, output: Path, log: Any) -> dict[str, Any]:
    """Runs a part for at most `seconds`, with its output in the log; returns its exit code, time and results."""
    command = part.command
    if part.warm_up_share:
        command += ("--warm_up_seconds", f"{part.warm_up_share * seconds:.1f}")
    if part.product:
        (output / part.product).unlink(missing_ok=True)
    log.write(f"\n== {part.name}: {' '.join(command[1:])}\n")
    log.flush()
    started = time.monotonic()
    code = exit_of(command, seconds, log)
    ended = {"command": " ".join(command[1:]), "exit": code, "seconds": round(time.monotonic() - started, 1)}
    if part.product and (output / part.product).exists():
        ended["found"] = json.loads((output / part.product).read_text())
    return ended


def exit_of(command: tuple[str, ...], seconds: float, log: Any) -> int | str:
    """Runs a command; returns its exit code, or a sentence if it was killed after `seconds`."""
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and its child processes
        process.wait()
        log.write(f"ended after {seconds:.0f} s\n")
        return f"ended after {seconds:.0f} s"


def machine(device: str) -> dict[str, Any]:
    """Returns the device's name and the versions of the software."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else platform.machine()
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}


def failures(results: dict[str, Any]) -> list[str]:
    """Returns the names of the parts and checks that failed."""
    parts = [name for name, part in results["parts"].items() if part["exit"] != 0]
    checks = results["parts"].get("checks", {}).get("found", ())
    return parts + [check["name"] for check in checks if check["outcome"] == "failed"]


if __name__ == "__main__":
    sys.exit(run_command(main, GpuOptions, __doc__))
