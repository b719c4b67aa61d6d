"""Finds out how this rank was launched, from DeepSpeed's parent processes or Slurm's environment variables.

DeepSpeed tells its program neither the hostfile nor when the launcher exits. Both are found in the parent processes:

    one host           deepspeed -> deepspeed.launcher.launch -> ranks
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
"""Endings of the training script's argument; outside a checkout it is a module, after --module."""
SHELLS = ("bash", "dash", "ksh", "sh", "zsh")

Slots = dict[str, int]
"""Number of processes on each host, in rank order."""


class Runner(NamedTuple):
    """Options given to the `deepspeed` command that launched this job."""

    hostfile: Path | None
    is_partial: bool
    """True if it was told to use only some of the hosts or slots."""


def launchers() -> list[psutil.Process]:
    """Returns the processes that this rank must not outlive: its parent, and DeepSpeed's launchers on this machine.

    For a launch by pdsh these are pdsh and the `deepspeed` command on the machine where it was typed, and the ssh
    connection's process on the others. Empty for the first process of a container.
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
    """Returns true if the process is running; a zombie counts as ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def find_runner() -> Runner | None:
    """Returns the `deepspeed` command among this rank's ancestors, if any; pdsh launches show none to their ranks."""
    for process, arguments in _ancestors():
        if _is_runner(arguments):
            return _read_runner(arguments, Path(process.cwd()))
    return None


def launched_slots() -> Slots | None:
    """Returns how many processes DeepSpeed started on each host; `None` under another launcher."""
    arguments = next((given for _, given in _ancestors()), [])
    encoded = [argument.partition("=")[2] for argument in arguments if argument.startswith("--world_info=")]
    if NODE_LAUNCHER not in arguments or not encoded:
        return None
    return {host: len(slots) for host, slots in json.loads(base64.urlsafe_b64decode(encoded[0])).items()}


def adopt_slurm(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variables that PyTorch and DeepSpeed expect, such as RANK, from Slurm's, in a task started by `srun`."""
    if "RANK" in environment or "SLURM_STEP_NUM_TASKS" not in environment or "SLURM_STEP_ID" not in environment:
        return
    # srun's own port is mixed in: every task of the step knows it, and it cannot be guessed from the job number.
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
    """Returns a whole number from an environment variable that the launcher sets.

    Raises:
        ConfigError: the variable is missing and has no default, or is not a whole number.
    """
    value = os.environ.get(name, default)
    if value is None or not re.fullmatch(r"[0-9]{1,9}", value):
        got = "nothing" if value is None else shown(value)
        raise ConfigError(
            f"{name}: got {got} from the environment, expected a whole number; start the processes with deepspeed,"
            " torchrun or srun, which set it, or unset RANK and WORLD_SIZE to train in one process"
        )
    return int(value)


def _ancestors() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yields this process's ancestors from the parent up, each with its command line."""
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if arguments := process.cmdline():
                yield process, arguments


def _is_runner(arguments: list[str]) -> bool:
    return any(Path(argument).name in RUNNERS for argument in arguments[:3])


def _read_runner(arguments: list[str], folder: Path) -> Runner:
    """Parses DeepSpeed's own options, which come before the script."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-H", "--hostfile", type=Path)
    for part in (("-i", "--include"), ("-e", "--exclude"), ("--num_nodes",), ("--num_gpus", "--num_accelerators")):
        parser.add_argument(*part, dest="part", default=None)
    script = next((place for place, argument in enumerate(arguments) if argument.endswith(SCRIPTS)), len(arguments))
    options, _ = parser.parse_known_args(arguments[:script])
    return Runner(folder / options.hostfile if options.hostfile else None, options.part is not None)
