"""Predicted against measured step time by length, batch size, vocabulary and processes; then the paper's runs on GPUs.

    python bench/scaling.py [--preset small --data data/wikibooks]

Each kind of work is timed separately at one shape (`bench/forecast.py`), and steps of other shapes are predicted from
it. With `--data` (shards of length 128) a run is also trained by one process and by two, with one thread each. Read the
difference at the end of each line, and the efficiency of two processes. The forecasts for GPUs are not measured.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.distributed as dist
from pydantic import Field
from torch import multiprocessing

from bench.batches import VOCABULARY, random_batch
from bench.forecast import PAPER_RUNS, Costs, Work, forecast
from bench.models import fresh_model
from bench.timing import median_seconds
from foundation.command_line import run_command
from foundation.config import StrictConfig
from pretrain.config import RunConfig
from pretrain.job.processes import start_processes
from pretrain.method.electra import Electra
from pretrain.model import cpu_ops
from pretrain.presets import preset, with_objective

REPOSITORY = Path(__file__).resolve().parents[1]
LENGTH = 128
OTHER_LENGTH, OTHER_VOCABULARY = 512, 8_192
"""Second points at which the costs per pair and per score are timed; not a shape of the steps predicted for scores."""
EXCHANGED = 16 * 2**20
"""Bytes in the all-reduce that times the link."""


class ScalingOptions(StrictConfig):
    """The command line of the benchmark."""

    preset: Literal["tiny", "small", "base"] = "small"
    """model sizes"""
    batch_size: int = Field(16, ge=4)
    """sequences per step at length 128; a multiple of 4"""
    repeats: int = Field(3, ge=1)
    """steps timed, after one that is not counted"""
    threads: int = Field(1, ge=1)
    """threads per process"""
    data: Path | None = None
    """shards for the launched runs"""
    steps: int = Field(12, ge=4)
    """steps of the launched runs"""
    port: int = 29_511
    """port of the launched runs"""


class Shape(NamedTuple):
    """Shape of one step of one process."""

    batch_size: int
    length: int = LENGTH
    vocabulary: int = VOCABULARY

    @property
    def work(self) -> Work:
        return Work(self.batch_size * self.length, self.length, self.vocabulary)

    def __str__(self) -> str:
        return f"{self.batch_size} x {self.length}, {self.vocabulary:,} word pieces"


def main(options: ScalingOptions) -> None:
    start_processes()  # with cpu_ops.use(), the set-up of a run's process and engine
    cpu_ops.use()
    torch.set_num_threads(options.threads)
    run = with_objective(preset(options.preset), "hp_loss")
    print(
        f"{options.preset}, hp_loss, fp32, {options.threads} threads per process, torch {torch.__version__}", flush=True
    )
    costs = measured_costs(run, options)
    print("costs, ns:", ", ".join(f"{name} {1e9 * value:.4g}" for name, value in costs._asdict().items()), flush=True)
    size = options.batch_size
    for shape in (
        Shape(size),
        Shape(2 * size),
        Shape(size // 2, 256),
        Shape(size // 2, 512),
        Shape(size, vocabulary=2 * VOCABULARY),
    ):
        model = new_model(run, shape.vocabulary)
        compare(str(shape), step_seconds(model, shape, options.repeats), costs.seconds(shape.work, count(model)))
    if options.data is not None:
        compare_processes(run, costs, options)
    print(paper_runs())


def compare(what: str, measured: float, predicted: float) -> None:
    difference = predicted / measured - 1
    print(f"  {what:34} measured {measured:7.3f} s, predicted {predicted:7.3f} s: {difference:+.0%}", flush=True)


def measured_costs(run: RunConfig, options: ScalingOptions) -> Costs:
    """Times each kind of work separately."""
    shape = Shape(options.batch_size)
    longer = Shape(options.batch_size * LENGTH // OTHER_LENGTH, OTHER_LENGTH)
    fewer = Shape(options.batch_size, vocabulary=OTHER_VOCABULARY)
    short, long = (encoder_seconds(run, one, options.repeats) / one.work.tokens for one in (shape, longer))
    pair = (long - short) / (OTHER_LENGTH - LENGTH)
    all_scores, few_scores = (gradient_seconds(new_model(run, one.vocabulary), one, options) for one in (shape, fewer))
    score = (all_scores - few_scores) / (shape.work.scores - fewer.work.scores)
    model = new_model(run, VOCABULARY)
    return Costs(short - LENGTH * pair, pair, score, update_seconds(model, options) / count(model), link_seconds())


def new_model(run: RunConfig, vocabulary: int) -> Electra:
    torch.manual_seed(0)
    model = run.model.model_copy(update={"max_positions": OTHER_LENGTH})
    return fresh_model(run.model_copy(update={"model": model}), vocabulary)


def count(model: Electra) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def encoder_seconds(run: RunConfig, shape: Shape, repeats: int) -> float:
    """Seconds for forward and backward of both encoders, up to their hidden states."""
    model, batch = new_model(run, shape.vocabulary), random_batch(shape.batch_size, shape.length)

    def both() -> None:
        for encoder in (model.generator, model.discriminator):
            encoder(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL).sum().backward()
        model.zero_grad()

    return median_seconds(both, repeats)


def gradient_seconds(model: Electra, shape: Shape, options: ScalingOptions) -> float:
    """Seconds for forward and backward of a step, without the update."""
    batch = random_batch(shape.batch_size, shape.length, shape.vocabulary)

    def both() -> None:
        model(batch).loss.backward()
        model.zero_grad()

    return median_seconds(both, options.repeats)


def update_seconds(model: Electra, options: ScalingOptions) -> float:
    """Seconds for clipping and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return median_seconds(update, options.repeats)


def step_seconds(model: Electra, shape: Shape, repeats: int) -> float:
    """Seconds for a whole step in this process."""
    batch = random_batch(shape.batch_size, shape.length, shape.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        model(batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return median_seconds(step, repeats)


def link_seconds() -> float:
    """Seconds per byte sent by each of two processes on this machine in an all-reduce."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_exchange, (f"{folder}/store", f"{folder}/seconds"), nprocs=2)
        return float(Path(folder, "seconds").read_text()) / EXCHANGED


def _exchange(rank: int, store: str, answer: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    tensor = torch.zeros(EXCHANGED // 4)
    taken = median_seconds(lambda: dist.all_reduce(tensor), 5)
    dist.barrier()
    if rank == 0:
        Path(answer).write_text(str(taken))
    dist.destroy_process_group()


def compare_processes(run: RunConfig, costs: Costs, options: ScalingOptions) -> None:
    """Compares a run launched with one process and with two, with one thread each."""
    parameters, whole = count(new_model(run, VOCABULARY)), Shape(options.batch_size)
    measured = {}
    for processes in (1, 2):
        measured[processes] = launched_step_seconds(options, processes)
        share = Shape(options.batch_size // processes)
        compare(f"{processes} launched, {whole}", measured[processes], costs.seconds(share.work, parameters, processes))
    speedup = measured[1] / measured[2]
    print(f"  {whole.work.tokens / measured[1]:,.0f} -> {whole.work.tokens / measured[2]:,.0f} tokens/s with padding")
    print(f"  speed-up {speedup:.2f}, efficiency {speedup / 2:.0%}", flush=True)


def launched_step_seconds(options: ScalingOptions, processes: int) -> float:
    """Median seconds per step of a run under `deepspeed`, without its first steps."""
    assert options.data is not None
    with tempfile.TemporaryDirectory() as folder:
        command = f"deepspeed --num_gpus {processes} --master_port {options.port} pretrain/run.py"
        command += f" --preset {options.preset} --data {options.data.resolve()} --output {folder}/run"
        command += f" --deepspeed_config ds_configs/zero1_fp32.json --set batch_size={options.batch_size}"
        command += f" optim.steps={options.steps} optim.warmup_steps=1 log_every=1 evaluate_sequences=1"
        command += f" evaluate_every={options.steps} checkpoint_every={options.steps} histogram_every={options.steps}"
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command.split(), cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.DEVNULL)
        records = map(json.loads, Path(folder, "run", "metrics.jsonl").read_text().splitlines())
        times = [one["tokens"] / one["tokens_per_second"] for one in records if one["kind"] == "train"]
    return statistics.median(times[2:-1])


def paper_runs() -> str:
    """Forecast days for the paper's runs at assumed shares of the peak; none was measured here."""
    lines = ["the paper's runs, forecast at ASSUMED shares of the vendor's peak (none measured here):"]
    with torch.device("meta"):  # shapes only
        parameters = {name: count(new_model(preset(name), VOCABULARY)) for name in ("small", "base")}
    for name, length, cluster, share in PAPER_RUNS:
        result = forecast(preset(name), parameters[name], length, VOCABULARY, cluster, share)
        lines.append(
            f"  {name:5} {length}, {cluster.gpus:2} {cluster.name}: {1e3 * result.computing:7.1f} ms + exchange"
            f" {1e3 * result.exchanging:5.1f} ms per step, {result.days:5.2f} days at {share.value:.1%}: {share.source}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run_command(main, ScalingOptions, __doc__))
