"""`run.py --dry_run`: everything that can be known before a run starts, printed; every problem, one line each."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from data_prep.config import ConfigError
from data_prep.tokens import open_tokenizer
from pretrain.estimates import GIB, SPEEDS, checkpoint_bytes, flops_per_token, memory_per_gpu, precision_of
from pretrain.hostfile import read_hostfile
from pretrain.hosts import check_hosts
from pretrain.launcher import Slots
from pretrain.models import build_model
from pretrain.run_folder import existing_part

if TYPE_CHECKING:
    from pretrain.run import Plan

DAY = 86_400


def dry_run(plan: "Plan", hostfile: Path | None) -> None:
    """Prints the plan of a run, what it will need, and how it is launched; starts nothing.

    Raises:
        ConfigError: all that would keep it from running well.
    """
    print(plan)
    problems = list(_vocabulary_problems(plan))
    parameters = sum(parameter.numel() for parameter in build_model(plan.description).parameters())
    for line in (
        *_size(plan, parameters),
        *_memory(plan, parameters),
        *_time(plan),
        *_disk(plan, parameters, problems),
    ):
        print(line)
    if hostfile:
        slots = read_hostfile(hostfile)
        hosts = check_hosts(slots, plan.shards.folders, precision_of(plan.deepspeed))
        problems += hosts.problems
        for line in (*_ranks(slots, hosts.found), *hosts.notes):
            print(line)
    print(f"launch      {_command(hostfile)}")
    if problems:
        raise ConfigError(*problems)
    print("nothing was started; no problem was found")


def _tokens(plan: "Plan") -> float:
    return plan.run.batch_size * plan.run.optim.steps * plan.shards.mean_length


def _flops(plan: "Plan") -> float:
    seq_length, vocab_size = plan.shards.manifest.seq_length, plan.shards.manifest.vocab_size
    per_token = flops_per_token(plan.run.model, plan.run.objective, vocab_size, seq_length)
    return per_token * plan.run.batch_size * plan.run.optim.steps * seq_length  # padding is computed too


def _size(plan: "Plan", parameters: int) -> Iterator[str]:
    yield f"size        {parameters / 1e6:.1f} M parameters; {_tokens(plan):.3g} word pieces, {_flops(plan):.3g} FLOPs"


def _memory(plan: "Plan", parameters: int) -> Iterator[str]:
    manifest = plan.shards.manifest
    memory = memory_per_gpu(
        plan.deepspeed, plan.world_size, parameters, plan.run.model, manifest.vocab_size, manifest.seq_length
    )
    parts = ", ".join(f"{name} {value / GIB:.2f}" for name, value in memory._asdict().items())
    yield f"memory      {memory.total / GIB:.1f} GiB a process at most: {parts} (estimated)"


def _time(plan: "Plan") -> Iterator[str]:
    precision = precision_of(plan.deepspeed)
    speed = SPEEDS[precision]
    days = _flops(plan) / (speed.flops * plan.world_size) / DAY
    yield f"time        {days:.2f} days on {plan.world_size} {speed.gpu} in {precision}, if each reaches {speed.source}"
    if precision == "fp16" and not torch.cuda.is_available():
        yield "note        fp16 needs GPUs: this machine has none and would refuse to start this run itself"


def _vocabulary_problems(plan: "Plan") -> Iterator[str]:
    """A vocabulary that is not the one the shards were made with."""
    for folder in plan.shards.folders:
        found, expected = open_tokenizer(str(folder / "tokenizer")).sha256(), plan.shards.manifest.tokenizer_sha256
        if found != expected:
            yield (
                f"data: {folder}/tokenizer is not what these shards were made with ({found[:12]}, expected"
                f" {expected[:12]}); copy it from there again, or build them again"
            )


def _ranks(slots: Slots, found: Mapping[str, str]) -> Iterator[str]:
    first = 0
    for host, count in slots.items():
        ranks = f"ranks {first} to {first + count - 1}" if count > 1 else f"rank {first}"
        yield f"host        {host}: {ranks}; {found[host]}"
        first += count


def _command(hostfile: Path | None) -> str:
    """That starts what was checked; with the hostfile among the options each rank compares it once more."""
    options = [part for part in sys.argv[1:] if part != "--dry_run"]
    return shlex.join(["deepspeed", *(["--hostfile", str(hostfile)] if hostfile else []), "pretrain/run.py", *options])


def _disk(plan: "Plan", parameters: int, problems: list[str]) -> Iterator[str]:
    run, place = plan.run, existing_part(plan.folder)
    kept = run.keep_checkpoints + (run.optim.steps // run.keep_every if run.keep_every else 0)
    needed = (kept + 1) * checkpoint_bytes(parameters)  # one is written before one is removed
    free = shutil.disk_usage(place).free
    yield f"disk        {needed / GIB:.1f} GiB for checkpoints; {free / GIB:.1f} GiB are free at {place}"
    if needed > free:
        problems.append(
            f"output: checkpoints need {needed / GIB:.1f} GiB, but {free / GIB:.1f} GiB are free at {place};"
            " free some, name another --output, or --set keep_checkpoints lower or keep_every to 0 or higher"
        )
