"""Stages a and e of `bench/gpu.py`: runs of `pretrain/run.py`: whether bits repeat, losses, memory and curves."""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.gpu.items import Figures, Item, SkippedError, keep, run_items
from bench.gpu.parts import GpuOptions
from electra_sampler.foundation.command_line import parse_options
from electra_sampler.foundation.files import ROOT
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.planning.plan_warnings import memory_of
from pretrain.runs.folder import CHECKPOINTS
from pretrain.runs.log import read_metrics
from pretrain.runs.models import build_model

CONFIGS = {"fp32": "zero0_fp32", "bf16": "zero1_bf16", "fp16": "zero1_fp16"}
"""DeepSpeed file by precision. fp32 at stage 0 needs no DeepSpeed; `bench.gpu.declared` provides fp16 on a CPU."""
SIZES = {"cuda": ("small", 128), "cpu": ("tiny", 8)}
ZERO_SIZES = {"cuda": ("base", 32), "cpu": ("tiny", 8)}
"""Preset and batch size."""
BITS_STEPS = {"cuda": 60, "cpu": 12}
ZERO_STEPS = {"cuda": 20, "cpu": 16}
TRAINING_STEPS = {"cuda": 1000, "cpu": 20}
OVERFLOWING = {"cuda": 32, "cpu": 18}
"""Initial loss scales, as powers of 2, at which gradients overflow in many steps, but not in all."""
STAGE = "deepspeed.zero_optimization.stage"
WAYS = {
    "ZeRO 1": (),
    "ZeRO 2": (f"{STAGE}=2",),
    "ZeRO 3": (f"{STAGE}=3", "deepspeed.zero_optimization.overlap_comm=false"),
    "offload": ("deepspeed.zero_optimization.offload_optimizer.device=cpu",),
    "recompute": ("deepspeed.activation_checkpointing={}",),
}
"""Ways to save memory: overrides by name. They may change the losses by rounding errors only."""
LOSS_TOLERANCE, MEMORY_TOLERANCE = 0.01, 0.10
CURVE = (
    *("step", "generator_loss", "sampler_loss", "discriminator_loss", "discriminator_entropy", "accuracy_masked"),
    *("auc_all", "loss_scale", "skipped", "gradient_norm", "tokens_per_second", "gpu_memory_gb"),
)
"""Fields of a training record that are kept."""
POLL_SECONDS = 0.05


class Run:
    """One run of `pretrain/run.py` in the folder `--work`; started again, it resumes."""

    def __init__(
        self, options: GpuOptions, name: str, precision: str, size: tuple[str, int], steps: int, *settings: str
    ) -> None:
        declared = precision == "fp16" and options.device == "cpu"
        self.script = ("bench/gpu/declared.py", "--asynchronous") if declared else ("pretrain/run.py",)
        self.folder, self.steps = options.work / name.replace(" ", "-"), steps
        preset, batch_size = size
        defaults = {"checkpoint_every": steps, "keep_checkpoints": 2, "evaluate_every": steps}
        defaults |= {"optim.steps": steps, "optim.warmup_steps": max(1, steps // 10), "batch_size": batch_size}
        defaults |= {"log_every": max(1, steps // 100)}
        self.arguments = ["--preset", preset, "--data", str(options.data), "--output", str(self.folder)]
        self.arguments += ["--deepspeed_config", f"ds_configs/{CONFIGS[precision]}.json", "--set"]
        self.arguments += [*(f"{key}={value}" for key, value in defaults.items()), *settings]

    def start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, *self.script, *self.arguments], cwd=ROOT)

    def finish(self) -> None:
        """Trains to the last step.

        Raises:
            RuntimeError: the command failed.
        """
        if code := self.start().wait():
            raise RuntimeError(f"exit code {code}: {' '.join((*self.script, *self.arguments))}")

    def kill(self) -> int:
        """Starts the run, kills it once it has a checkpoint, and returns the step of its newest checkpoint."""
        process = self.start()
        while not self.step() and process.poll() is None:
            time.sleep(POLL_SECONDS)
        process.kill()
        process.wait()
        reached = self.step()
        assert 0 < reached < self.steps, f"killed at step {reached} of {self.steps}"
        return reached

    def step(self) -> int:
        """Returns the step of the newest checkpoint; 0 without one."""
        complete = (self.folder / CHECKPOINTS).glob("step-????????/complete.json")  # none that is being written
        return max((int(path.parent.name.removeprefix("step-")) for path in complete), default=0)

    def losses(self) -> list[float]:
        """Returns the losses of the last steps, as the final checkpoint holds them."""
        return list(json.loads((self._last / "state.json").read_text())["extra"]["recent_losses"])

    def digest(self) -> str:
        """Returns a checksum of the losses, and of the weights and the optimizer's state at the end."""
        files = [path.read_bytes() for path in sorted(self._last.glob("*.safetensors"))]
        return hashlib.sha256(b"".join([json.dumps(self.losses()).encode(), *files])).hexdigest()

    def records(self) -> list[Figures]:
        """Returns the records of training so far."""
        return read_metrics(self.folder, "train")

    def estimated_bytes(self) -> float:
        """Returns the dry run's estimate of a process's memory."""
        plan = make_plan(parse_options(RunOptions, None, self.arguments))
        parameters = sum(parameter.numel() for parameter in build_model(plan.description).parameters())
        return sum(memory_of(plan, parameters, plan.machine()))

    @property
    def _last(self) -> Path:
        return self.folder / CHECKPOINTS / f"step-{self.steps:08d}"


def bits(options: GpuOptions, precision: str, product: Path) -> int:
    """Checks that an uninterrupted run and a run resumed after a kill end with the same bits; returns 1 if not."""
    return run_items({precision: partial(same_bits, options, precision)}, product)


def same_bits(options: GpuOptions, precision: str) -> Figures:
    """Compares an uninterrupted run with a run that is killed and resumed.

    If they differ, a second uninterrupted run shows whether resuming is the cause. In fp16 the first steps overflow.
    """
    fp16 = precision == "fp16"
    size, steps = SIZES[options.device], BITS_STEPS[options.device]
    overflowing = (f"deepspeed.fp16.initial_scale_power={OVERFLOWING[options.device]}",) if fp16 else ()
    rarely = f"log_every={max(1, steps // 4)}"  # a step that reports is no replay
    once, again, resumed = (
        Run(options, f"bits {precision} {name}", precision, size, steps, rarely, *overflowing, *checkpoints)
        for name, checkpoints in (
            ("once", ()),
            ("again", ()),
            ("resumed", (f"checkpoint_every={max(1, steps // 4)}",)),
        )
    )
    for run in (once, again, resumed):
        shutil.rmtree(run.folder, ignore_errors=True)
    once.finish()
    killed_at = resumed.kill()
    resumed.finish()
    last = once.records()[-1]
    figures = {"killed_at": killed_at, "skipped": last["skipped"], "loss_scale": last["loss_scale"]}
    if resumed.digest() != once.digest():
        again.finish()
        repeats = again.digest() == once.digest()
        raise AssertionError(f"the resumed run ends with different bits; reruns agree: {repeats}; {figures}")
    assert not fp16 or 0 < last["skipped"] < steps, f"no overflow, or nothing else: {figures}"
    return {**figures, "sha256": once.digest()}


def zero(options: GpuOptions, product: Path) -> int:
    """Compares, for each of `WAYS`, the losses with those of ZeRO 1, and peak memory with its estimate."""
    size, steps = ZERO_SIZES[options.device], ZERO_STEPS[options.device]
    runs = {name: Run(options, f"zero {name}", "fp16", size, steps, *settings) for name, settings in WAYS.items()}
    for run in runs.values():
        shutil.rmtree(run.folder, ignore_errors=True)
    return run_items(dict(zero_items(runs)), product)


def zero_items(runs: dict[str, Run]) -> Iterator[tuple[str, Item]]:
    reference = next(iter(runs.values()))
    for name, run in runs.items():
        yield f"losses, {name}", partial(same_losses, reference, run)
        yield f"memory, {name}", partial(memory_as_estimated, run)


def same_losses(reference: Run, run: Run) -> Figures:
    """Checks that the losses of two runs agree, step by step."""
    for each in (reference, run):
        if each.step() < each.steps:
            each.finish()
    assert run.records()[-1]["skipped"] < run.steps / 2, "too many steps overflowed"
    pairs = zip(run.losses(), reference.losses(), strict=True)
    off = max(abs(ours - expected) / abs(expected) for ours, expected in pairs)
    assert off <= LOSS_TOLERANCE, f"losses differ by {off:.2g}, at most {LOSS_TOLERANCE}"
    return {"off": off, "equal": run.digest() == reference.digest()}


def memory_as_estimated(run: Run) -> Figures:
    """Checks a run's peak GPU memory against the dry run's estimate."""
    if run.step() < run.steps:
        run.finish()
    measured = run.records()[-1].get("gpu_memory_gb")
    if measured is None:
        raise SkippedError("peak memory is measured on a GPU only")
    figures = {"measured_gb": measured, "estimated_gb": run.estimated_bytes() / 1e9}
    ratio = figures["measured_gb"] / figures["estimated_gb"]
    assert abs(ratio - 1) <= MEMORY_TOLERANCE, f"{figures}: {ratio:.2f} times the estimate"
    return figures


def training(options: GpuOptions, precision: str, product: Path) -> int:
    """Trains a run, resuming it if it was killed on this machine; its curve is saved throughout."""
    steps = TRAINING_STEPS[options.device]
    often = f"checkpoint_every={max(1, steps // 4)}"
    run = Run(options, f"training {precision}", precision, SIZES[options.device], steps, often)
    process = run.start()
    while (code := process.poll()) is None:
        time.sleep(1)
        keep_curve(run, product)
    keep_curve(run, product)
    return code


def keep_curve(run: Run, product: Path) -> None:
    curve = [{name: record[name] for name in CURVE if name in record} for record in run.records()]
    held_out = read_metrics(run.folder, "held_out")
    keep({"steps": run.steps, "curve": curve, "held_out": held_out[-1] if held_out else None}, product)
