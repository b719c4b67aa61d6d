"""`run.py --dry_run`: prints everything that is known before a run starts, and every problem on one line."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from electra_sampler.commands import as_typed
from foundation.command_line import print_warning, printable
from foundation.config import ConfigError, counted
from foundation.files import existing_part
from foundation.progress import DAY, duration
from pretrain.engine.checkpoint import newest_valid
from pretrain.job.hostfile import read_hostfile
from pretrain.job.hosts import check_hosts
from pretrain.job.launcher import Slots
from pretrain.job.rank_log import printable_lines
from pretrain.training.doubts import assumed_gpu, disk_needed, disk_shortage, doubts, memory_of, too_long
from pretrain.training.estimates import GIB, SPEEDS, flops_per_token
from pretrain.training.models import build_model
from pretrain.training.plan import Plan
from pretrain.training.run_folder import CHECKPOINTS

NOT_TYPED = ("--dry_run", "--local_rank")
"""Options that the command to start a run lacks: DeepSpeed's launcher adds the second."""


def dry_run(plan: Plan, hostfile: Path | None) -> None:
    """Prints a run's plan, its estimated needs, its launch command and warnings; starts nothing.

    Raises:
        ConfigError: lists everything that would keep the run from working.
    """
    print(printable_lines(str(plan)))
    if checkpoint := newest_valid(plan.folder / CHECKPOINTS):
        print(f"start       resumes from step {checkpoint.step:,} of {plan.run.optim.steps:,}")
    parameters = sum(parameter.numel() for parameter in build_model(plan.description).parameters())
    shortage = list(disk_shortage(plan, parameters))
    problems = [*shortage]
    for line in _needs(plan, parameters):
        print(printable(line))
    if hostfile:
        slots = read_hostfile(hostfile)
        local = [folder for folder in plan.shards.folders if str(folder) in plan.shards.names]
        hosts = check_hosts(slots, local, plan.deepspeed.precision)
        problems += hosts.problems
        for line in (*_ranks(slots, hosts.found), *hosts.notes):
            print(printable(line))
    # the run's options keep --hostfile, so each rank checks it again
    given = [*(["--hostfile", str(hostfile)] if hostfile else []), "pretrain/run.py", *sys.argv[1:]]
    command = as_typed(shlex.join(["deepspeed", *(part for part in given if not part.startswith(NOT_TYPED))]))
    print(printable(f"launch      {command}"))
    warnings = [doubt for doubt in doubts(plan, parameters, on_gpus=True) if doubt not in shortage]
    warnings += too_long(_days(plan), f"{plan.world_size} {SPEEDS[plan.deepspeed.precision].gpu}")
    if not problems:
        print(f"nothing was started; {counted(len(warnings), 'warning') + ':' if warnings else 'no problem was found'}")
    for warning in warnings:
        print_warning(warning)
    if problems:
        raise ConfigError(*problems)


def _flops(plan: Plan) -> float:
    seq_length, vocab_size = plan.shards.manifest.seq_length, plan.shards.manifest.vocab_size
    per_token = flops_per_token(plan.run.model, plan.run.objective, vocab_size, seq_length)
    return per_token * plan.run.batch_size * plan.run.optim.steps * seq_length  # including padding


def _days(plan: Plan) -> float:
    return _flops(plan) / (SPEEDS[plan.deepspeed.precision].flops * plan.world_size) / DAY


def _needs(plan: Plan, parameters: int) -> Iterator[str]:
    tokens = plan.run.batch_size * plan.run.optim.steps * plan.shards.mean_length
    yield f"size        {parameters / 1e6:.1f} M parameters; {tokens:.3g} word pieces, {_flops(plan):.3g} FLOPs"
    memory = memory_of(plan, parameters)
    parts = ", ".join(f"{name} {value / GIB:.2f}" for name, value in memory._asdict().items())
    yield f"memory      {memory.total / GIB:.1f} GiB per process on a {assumed_gpu(plan).name}: {parts} (estimated)"
    precision = plan.deepspeed.precision
    speed = SPEEDS[precision]
    machine = f"{plan.world_size} {speed.gpu} in {precision}"
    yield f"time        {duration(max(1, _days(plan) * DAY))} on {machine}, if each reaches {speed.source}"
    if precision == "fp16" and not torch.cuda.is_available():
        yield "note        fp16 needs GPUs: this machine has none, so the run cannot start here"
    place, needed = existing_part(plan.folder), disk_needed(plan, parameters)
    free = shutil.disk_usage(place).free
    yield f"disk        {needed / GIB:.1f} GiB for checkpoints; {free / GIB:.1f} GiB are free at {place}"


def _ranks(slots: Slots, found: Mapping[str, str]) -> Iterator[str]:
    first = 0
    for host, count in slots.items():
        ranks = f"ranks {first} to {first + count - 1}" if count > 1 else f"rank {first}"
        yield f"host        {host}: {ranks}; {found[host]}"
        first += count
