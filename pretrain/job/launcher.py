"""Launchers of a job: the processes above a rank, and the variables that they set."""

import os
import re
from collections.abc import Iterator, MutableMapping
from contextlib import suppress

import psutil

from electra_sampler.foundation.config import ConfigError, shown

SUPERVISORS = ("supervise", "supervise.py")
"""A process is the supervisor if one of its first three arguments ends like this."""


def launchers() -> list[psutil.Process]:
    """Returns the processes whose end must end this rank: its launchers on this machine, and the supervisor.

    They are the rank's parent and, under DeepSpeed, all processes with the job's arguments and their parents:

        one host           deepspeed -> node launcher -> ranks
        several, by pdsh   deepspeed -> pdsh -> ssh  ~~>  sshd -> node launcher -> ranks
    """
    found = _parents(psutil.Process())[:1] if "RANK" in os.environ else []  # none above a container's first process
    job = {part for parent in found for part in _arguments(parent) if part.startswith(("--world_info=", "--master_"))}
    for process in psutil.process_iter() if job else ():
        if job <= set(_arguments(process)):
            found += [process, *_parents(process)[:1]]
    above = (ancestor for process in (psutil.Process(), *found) for ancestor in _parents(process))
    return found + [one for one in above if any(part.endswith(SUPERVISORS) for part in _arguments(one)[:3])]


def _parents(process: psutil.Process) -> list[psutil.Process]:
    found = [process]
    with suppress(psutil.Error):  # /proc may hide other users' processes
        while above := found[-1].parent():
            found.append(above)
    return found[1:]


def _arguments(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):  # it has just ended, or is another user's
        return process.cmdline()
    return []


def is_alive(process: psutil.Process) -> bool:
    """Returns true if the process is running; a zombie counts as ended."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def adopt_slurm(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variables that PyTorch and DeepSpeed expect, such as RANK, from Slurm's, in a task started by `srun`."""
    if "RANK" in environment or "SLURM_STEP_NUM_TASKS" not in environment or "SLURM_STEP_ID" not in environment:
        return
    # srun's own port is mixed in: every task of the step knows it, and it cannot be guessed from the job number.
    drawn = int(environment["SLURM_STEP_ID"]) + int(environment.get("SLURM_STEP_LAUNCHER_PORT", "0"))
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])  # 8(x2),4: 8, 8 and 4
    tasks = [tasks for tasks, nodes in counts for _ in range(int(nodes or 1))]
    first = re.sub(r"\[([^\],-]+).*|,.*", r"\1", environment["SLURM_STEP_NODELIST"])  # gpu[03-07,12],login: gpu03
    found = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_SIZE": tasks[int(environment["SLURM_NODEID"])],
        "MASTER_ADDR": first,
        "MASTER_PORT": str(20_000 + (int(environment["SLURM_JOB_ID"]) * 16 + drawn) % 10_000),
    }
    for key, value in found.items():
        environment.setdefault(key, value)


def missing_tasks() -> Iterator[str]:
    """Yields a warning in a shell that `srun --pty` started as one of several tasks, unless under another launcher."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if (
        tasks != "1"
        and "SLURM_PTY_PORT" in os.environ
        and not {"TORCHELASTIC_RUN_ID", "CROSS_SIZE"} & os.environ.keys()
    ):
        yield (
            f"this shell of `srun --pty` is one of {tasks} tasks of its Slurm step, and a run started in it waits for"
            " the other tasks; start the shell with --ntasks=1, or the run itself with srun"
        )


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
