"""The launcher of this rank: DeepSpeed's processes above it, or Slurm's variables around it.

DeepSpeed gives its program neither the hostfile nor word of its own end, so both are read from the processes above:

    one machine        deepspeed -> deepspeed.launcher.launch -> ranks
    several, by pdsh   deepspeed -> pdsh -> ssh  ~~>  sshd -> shell -> deepspeed.launcher.launch -> ranks
"""

import argparse
import base64
import contextlib
import json
import os
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import NamedTuple

import psutil

from foundation.config import ConfigError, shown

NODE_LAUNCHER = "deepspeed.launcher.launch"
RUNNERS = ("deepspeed", "ds", "deepspeed.launcher.runner")
SCRIPTS = (".py", "pretrain.run")
"""How what it is to start ends; a module after --module, outside a checkout."""
SHELLS = ("bash", "dash", "ksh", "sh", "zsh")

Slots = dict[str, int]
"""Processes on each host, in the order of their ranks."""


class Runner(NamedTuple):
    """What the `deepspeed` command of this job was given."""

    hostfile: Path | None
    takes_part: bool
    """Told to use only some of the hosts or slots."""


def launchers() -> list[psutil.Process]:
    """The processes that this rank should not outlive: its parent, and as much as this machine shows of DeepSpeed's.

    Of a launch by pdsh the machine it was typed on shows pdsh and the runner, any other the end of the ssh connection.
    The first process of a container has none.
    """
    ancestors = list(_ancestors())
    if not ancestors:
        return []
    (parent, arguments), *above = ancestors
    found = next(((process, given) for process, given in above if Path(given[0]).name not in SHELLS), None)
    if NODE_LAUNCHER not in arguments or not found or not (_is_runner(found[1]) or found[1][0].startswith("sshd")):
        return [parent]
    job = {part for part in arguments if part.startswith(("--world_info=", "--master_"))}
    launching = [parent, found[0]]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (given := process.cmdline()) and Path(given[0]).name == "pdsh" and job <= set(given):
                launching += filter(None, (process, process.parent()))
    return launching


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def find_runner() -> Runner | None:
    """The `deepspeed` command above this rank; with several hosts it is above none of theirs."""
    for process, arguments in _ancestors():
        if _is_runner(arguments):
            return _read_runner(arguments, Path(process.cwd()))
    return None


def launched_slots() -> Slots | None:
    """How many processes DeepSpeed has started on each host; `None` under anything else."""
    arguments = next((given for _, given in _ancestors()), [])
    encoded = [argument.partition("=")[2] for argument in arguments if argument.startswith("--world_info=")]
    if NODE_LAUNCHER not in arguments or not encoded:
        return None
    return {host: len(slots) for host, slots in json.loads(base64.urlsafe_b64decode(encoded[0])).items()}


def adopt_slurm(environment: MutableMapping[str, str] = os.environ) -> None:
    """Tells PyTorch and DeepSpeed in their variables what Slurm says in its own; for a task that `srun` started."""
    if "RANK" in environment or "SLURM_STEP_NUM_TASKS" not in environment or "SLURM_STEP_ID" not in environment:
        return
    # The port that srun got for its output: all tasks of a step know it, and the job's number does not tell it.
    drawn = int(environment["SLURM_STEP_ID"]) + int(environment.get("SLURM_STEP_LAUNCHER_PORT", "0"))
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])  # 8(x2),4: 8, 8 and 4
    tasks = [tasks for tasks, nodes in counts for _ in range(int(nodes or 1))]
    first = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", environment["SLURM_STEP_NODELIST"])  # gpu[03-07,12],login: gpu03
    assert first is not None
    found = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_SIZE": tasks[int(environment["SLURM_NODEID"])],
        "MASTER_ADDR": "".join(first.groups("")),
        "MASTER_PORT": str(20_000 + (int(environment["SLURM_JOB_ID"]) * 16 + drawn) % 10_000),
    }
    for key, value in found.items():
        environment.setdefault(key, value)


def number_of(name: str, default: str | None = None) -> int:
    """A number that a launcher has left in the environment.

    Raises:
        ConfigError: there is none, or it is no number.
    """
    value = os.environ.get(name, default)
    if value is None or not re.fullmatch(r"[0-9]{1,9}", value):
        got = "nothing" if value is None else shown(value)
        raise ConfigError(
            f"{name}: got {got} from the environment, expected a whole number; start the processes by deepspeed,"
            " torchrun or srun, which set it, or unset RANK and WORLD_SIZE to train in one process"
        )
    return int(value)


def _ancestors() -> Iterator[tuple[psutil.Process, list[str]]]:
    """From the parent up, each with its command line."""
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if arguments := process.cmdline():
                yield process, arguments


def _is_runner(arguments: list[str]) -> bool:
    return any(Path(argument).name in RUNNERS for argument in arguments[:3])


def _read_runner(arguments: list[str], folder: Path) -> Runner:
    """Reads DeepSpeed's options, which stand before the script."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-H", "--hostfile", type=Path)
    for part in (("-i", "--include"), ("-e", "--exclude"), ("--num_nodes",), ("--num_gpus", "--num_accelerators")):
        parser.add_argument(*part, dest="part", default=None)
    script = next((place for place, argument in enumerate(arguments) if argument.endswith(SCRIPTS)), len(arguments))
    options, _ = parser.parse_known_args(arguments[:script])
    return Runner(folder / options.hostfile if options.hostfile else None, options.part is not None)
