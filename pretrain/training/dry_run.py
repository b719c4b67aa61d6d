"""`run.py --dry_run`: prints everything that is known before a run starts, and every problem on one line."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping

from foundation.command_line import print_warning, printable
from foundation.config import ConfigError, counted
from foundation.files import existing_part
from foundation.progress import about
from pretrain.engine.checkpoint import newest_valid
from pretrain.job.hosts import Slots, check_hosts
from pretrain.job.rank_log import printable_lines
from pretrain.training.doubts import disk_needed, disk_shortage, doubts, memory_of, too_long, unasked_months
from pretrain.training.estimates import GIB
from pretrain.training.machines import Machine, machine_of
from pretrain.training.models import build_model
from pretrain.training.plan import Plan
from pretrain.training.run_folder import CHECKPOINTS

NOT_TYPED = ("--dry_run", "--local_rank")
"""Options that the command to start a run lacks: DeepSpeed's launcher adds the second."""


def dry_run(plan: Plan) -> None:
    """Prints a run's plan, its estimated needs, its launch command and warnings; starts nothing.

    Raises:
        ConfigError: lists everything that would keep the run from working.
    """
    run = plan.run
    settings = f"model       {run.model}\nobjective   {run.objective}\noptimizer   {run.optim}"
    print(printable_lines(f"{plan}\n{settings}"))
    if checkpoint := newest_valid(plan.folder / CHECKPOINTS):
        print(f"start       resumes from step {checkpoint.step:,} of {plan.run.optim.steps:,}")
    parameters = sum(parameter.numel() for parameter in build_model(plan.description).parameters())
    machine = machine_of(plan)
    problems = [*disk_shortage(plan, parameters), *unasked_months(plan, machine)]
    for line in _needs(plan, parameters, machine):
        print(printable(line))
    if slots := plan.target.slots:
        local = [folder for folder in plan.shards.folders if str(folder) in plan.shards.names]
        found_problems, found = check_hosts(slots, local)
        problems += found_problems
        for line in _ranks(slots, found):
            print(printable(line))
        if len(slots) > 1 and "ServerAliveInterval" not in os.environ.get("PDSH_SSH_ARGS_APPEND", ""):
            print("note        pdsh waits forever for a host that loses its network, unless ssh sends keep-alives:")
            print("note        export PDSH_SSH_ARGS_APPEND='-o ServerAliveInterval=15'")
    print(printable(f"launch      {_launch(plan)}"))
    warnings = [doubt for doubt in doubts(plan, parameters, machine) if doubt not in problems]
    warnings += [] if problems else too_long(plan, machine)
    if not problems:
        print(f"nothing was started; {counted(len(warnings), 'warning') + ':' if warnings else 'no problem was found'}")
    for warning in warnings:
        print_warning(warning)
    if problems:
        raise ConfigError(*problems)


def _launch(plan: Plan) -> str:
    """Returns the command that starts the run: this one without the options of a dry run."""
    options = shlex.split(re.sub(r"--forecast[ =]\S+", "", shlex.join(sys.argv[1:])))
    given = [part for part in options if not part.startswith(NOT_TYPED)]
    hostfile = plan.options.hostfile
    launcher = ["deepspeed", *(["--hostfile", str(hostfile)] if hostfile else []), "--module"]
    if not hostfile and plan.target.processes == 1 and not plan.target.on_gpu:
        launcher = ["python", "-m"]
    return shlex.join([*launcher, "pretrain.run", *given])  # --hostfile too: each rank checks it again


def _needs(plan: Plan, parameters: int, machine: Machine) -> Iterator[str]:
    run = plan.run
    tokens, flops = run.batch_size * run.optim.steps * plan.shards.mean_length, plan.flops_per_step * run.optim.steps
    yield f"size        {parameters / 1e6:.1f} M parameters; {tokens:.3g} word pieces, {flops:.3g} FLOPs"
    memory = memory_of(plan, parameters, machine)
    parts = ", ".join(f"{name} {value / GIB:.2f}" for name, value in memory._asdict().items())
    yield f"memory      {memory.total / GIB:.1f} GiB per process, of {machine.memory / GIB:.1f}: {parts} (estimated)"
    took = about(plan.seconds(machine.flops, run.optim.steps))
    each = "each reaches" if plan.target.gpu else "it reaches"
    yield f"time        {took} on {machine.name} in {plan.deepspeed.precision}, if {each} {machine.source}"
    place, needed = existing_part(plan.folder), disk_needed(plan, parameters)
    free = shutil.disk_usage(place).free
    yield f"disk        {needed / GIB:.1f} GiB for checkpoints; {free / GIB:.1f} GiB are free at {place}"


def _ranks(slots: Slots, found: Mapping[str, str]) -> Iterator[str]:
    first = 0
    for host, count in slots.items():
        ranks = f"ranks {first} to {first + count - 1}" if count > 1 else f"rank {first}"
        yield f"host        {host}: {ranks}; {found[host]}"
        first += count
