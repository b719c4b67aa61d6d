"""The report of `--dry_run`: a run's plan, its needs on this machine or another, and whether its hosts can train."""

import argparse
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from electra_sampler.foundation.command_line import print_warning
from electra_sampler.foundation.config import counted, refuse
from electra_sampler.foundation.files import existing_part
from electra_sampler.foundation.progress import about
from pretrain.engine.checkpoint import newest_valid
from pretrain.job.launcher import missing_tasks
from pretrain.job.rank_log import printable_lines
from pretrain.planning.estimates import GIB, LAUNCH, Machine
from pretrain.planning.hosts import check_hosts
from pretrain.planning.plan import Plan
from pretrain.planning.plan_warnings import (
    disk_needed,
    disk_shortage,
    memory_of,
    plan_warnings,
    too_long,
    unconfirmed_days,
)
from pretrain.runs.folder import CHECKPOINTS
from pretrain.runs.models import empty_model


def dry_run(plan: Plan, hostfile: Path | None) -> None:
    """Prints a run's plan, its estimated needs, its launch command and warnings; starts nothing.

    Raises:
        ConfigError: lists everything that would keep the run from working.
    """
    run, machine = plan.run, plan.machine()
    parameters = sum(parameter.numel() for parameter in empty_model(plan.description).parameters())
    problems = [*disk_shortage(plan, parameters), *unconfirmed_days(plan, machine)]
    warnings = [warning for warning in plan_warnings(plan, parameters, machine) if warning not in problems]
    lines = [str(plan), f"model       {run.model}", f"objective   {run.objective}", f"optimizer   {run.optim}"]
    if checkpoint := newest_valid(plan.folder / CHECKPOINTS):
        lines.append(f"start       resumes from step {checkpoint.step:,} of {run.optim.steps:,}")
    lines += _needs(plan, parameters, machine)
    if slots := plan.here.target.slots:
        local = [folder for folder in plan.shards.folders if str(folder) in plan.shards.names]
        of_hosts, found = check_hosts(slots, local)
        problems += of_hosts
        lines += [f"host        {host}: {counted(count, 'slot')}; {found[host]}" for host, count in slots.items()]
        if len(slots) > 1 and "ServerAliveInterval" not in os.environ.get("PDSH_SSH_ARGS_APPEND", ""):
            warnings.append(
                "pdsh waits forever for a host that loses its network; use"
                " export PDSH_SSH_ARGS_APPEND='-o ServerAliveInterval=15'"
            )
    warnings += missing_tasks()
    print(printable_lines("\n".join([*lines, f"launch      {_launch(plan, hostfile)}"])))
    if not problems:
        warnings += too_long(plan, machine)
        print(f"nothing was started; {counted(len(warnings), 'warning') + ':' if warnings else 'no problem was found'}")
    for warning in warnings:
        print_warning(warning)
    refuse(problems)


def _launch(plan: Plan, hostfile: Path | None) -> str:
    """Returns the command that starts the run: this one without the options of a dry run and of the launcher."""
    left_out = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    left_out.add_argument("--dry_run", action="store_true")
    left_out.add_argument("--forecast", "--local_rank")
    given = left_out.parse_known_args(sys.argv[1:])[1]  # --hostfile too: each rank checks it again
    launcher = ["deepspeed", *(["--hostfile", str(hostfile)] if hostfile else []), "--module"]
    if not hostfile and plan.here.target.processes == 1 and not plan.here.target.on_gpu:
        launcher = ["python", "-m"]
    return shlex.join([*launcher, "pretrain.run", *given])


def _needs(plan: Plan, parameters: int, machine: Machine) -> Iterator[str]:
    run = plan.run
    tokens = run.batch_size * run.optim.steps * plan.shards.mixture.mean_length
    flops = plan.sizes.flops * tokens  # without those on padding
    yield f"size        {parameters / 1e6:.1f} M parameters; {tokens:.3g} word pieces, {flops:.3g} FLOPs"
    memory = memory_of(plan, parameters, machine)
    parts = ", ".join(f"{name} {value / GIB:.2f}" for name, value in memory._asdict().items())
    yield f"memory      {sum(memory) / GIB:.1f} GiB per process, of {machine.memory / GIB:.1f}: {parts} (estimated)"
    seconds = plan.seconds(machine, run.optim.steps)
    provided = f"{'each' if plan.here.target.gpu else 'it'} reaches {machine.source}"
    if seconds == plan.seconds(machine._replace(flops=math.inf), run.optim.steps):
        provided = f"its host launches an operation in {1e6 * LAUNCH:.0f} µs, which the GPU waits for"
    yield (
        f"time        {about(seconds)}, {1e3 * seconds / run.optim.steps:,.0f} ms a step, on {machine.name} in"
        f" {plan.here.deepspeed.precision}, if {provided}"
    )
    place, needed = existing_part(plan.folder), disk_needed(plan, parameters)
    yield (
        f"disk        {needed / GIB:.1f} GiB for checkpoints;"
        f" {shutil.disk_usage(place).free / GIB:.1f} GiB are free at {place}"
    )
