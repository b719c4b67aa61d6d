"""What launched this rank: DeepSpeed's processes above it, or Slurm's variables around it.

DeepSpeed gives its program neither the hostfile nor word of its own end, so both are read from Linux's /proc:

    one machine        deepspeed -> deepspeed.launcher.launch -> ranks
    several, by pdsh   deepspeed -> pdsh -> ssh  ~~>  sshd -> shell -> deepspeed.launcher.launch -> ranks
"""

import argparse
import base64
import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from foundation.config import ConfigError, shown

NODE_LAUNCHER = "deepspeed.launcher.launch"
RUNNERS = ("deepspeed", "ds", "deepspeed.launcher.runner")
SHELLS = ("bash", "dash", "ksh", "sh", "zsh")
ENDED_STATES = "ZX"
"""Of /proc/PID/stat: a zombie waits for its parent, a dead process for nothing."""

Slots = dict[str, int]
"""Processes on each host, in the order of their ranks."""


class Process(NamedTuple):
    """A process, told apart from a later one of the same number by its start."""

    pid: int
    started: int
    """Clock ticks after the machine's start."""

    @property
    def is_alive(self) -> bool:
        try:
            return _started(self.pid) == self.started
        except OSError:
            return False

    @property
    def arguments(self) -> list[str]:
        return _read(self.pid, "cmdline").split("\0")[:-1]


class Runner(NamedTuple):
    """What the `deepspeed` command of this job was given."""

    hostfile: Path | None
    takes_part: bool
    """Told to use some of the hosts or slots alone."""


def launchers() -> list[Process]:
    """The processes that this rank should not outlive: its parent, and as much as this machine shows of DeepSpeed's.

    Of a launch by pdsh the machine it was typed on shows pdsh and the runner, any other the end of the ssh connection.
    The first process of a container has none.
    """
    ancestors = list(_ancestors())
    if not ancestors:
        return []
    parent, *above = ancestors
    if NODE_LAUNCHER not in parent.arguments:
        return [parent]
    started_by = next((process for process in above if Path(process.arguments[0]).name not in SHELLS), None)
    if started_by is None or not (_is_runner(started_by.arguments) or started_by.arguments[0].startswith("sshd")):
        return [parent]
    return [parent, started_by, *_pdsh_of(parent)]


def _pdsh_of(node_launcher: Process) -> list[Process]:
    """The pdsh on this machine that started this node launcher, and what started pdsh."""
    job = {part for part in node_launcher.arguments if part.startswith(("--world_info=", "--master_"))}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = _read(int(path.name), "cmdline").split("\0")
            if Path(arguments[0]).name == "pdsh" and job <= set(arguments):
                found += [_process(int(path.name)), _process(_parent(int(path.name)))]
    return found


def find_runner() -> Runner | None:
    """The `deepspeed` command above this rank; with several hosts it is above none of theirs."""
    for process in _ancestors():
        if _is_runner(process.arguments):
            return _read_runner(process.arguments, Path(f"/proc/{process.pid}/cwd").readlink())
    return None


def launched_slots() -> Slots | None:
    """How many processes DeepSpeed has started on each host; `None` under anything else."""
    arguments = next((process.arguments for process in _ancestors()), [])
    encoded = [argument.partition("=")[2] for argument in arguments if argument.startswith("--world_info=")]
    if NODE_LAUNCHER not in arguments or not encoded:
        return None
    return {host: len(slots) for host, slots in json.loads(base64.urlsafe_b64decode(encoded[0])).items()}


def adopt_slurm(environment: MutableMapping[str, str] = os.environ) -> None:
    """Tells PyTorch and DeepSpeed in their variables what Slurm says in its own; for a task that `srun` started."""
    if "RANK" in environment or "SLURM_STEP_NUM_TASKS" not in environment or "SLURM_STEP_ID" not in environment:
        return
    port = 20_000 + (int(environment["SLURM_JOB_ID"]) * 16 + _drawn_for_step(environment)) % 10_000
    found = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_SIZE": _tasks_on_node(environment["SLURM_STEP_TASKS_PER_NODE"], int(environment["SLURM_NODEID"])),
        "MASTER_ADDR": _first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(port),
    }
    for key, value in found.items():
        environment.setdefault(key, value)


def _drawn_for_step(environment: Mapping[str, str]) -> int:
    """What all tasks of a step know and its job's number does not tell: the port that srun got for their output."""
    return int(environment["SLURM_STEP_ID"]) + int(environment.get("SLURM_STEP_LAUNCHER_PORT", "0"))


def _first_host(hosts: str) -> str:
    """Of Slurm's short form: gpu[03-07,12],login -> gpu03."""
    matched = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", hosts)
    assert matched is not None
    return matched[1] + (matched[2] or "")


def _tasks_on_node(counts: str, node: int) -> str:
    """Of Slurm's short form: 8(x2),4 has 8 tasks on nodes 0 and 1, and 4 on node 2."""
    matches = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [tasks for tasks, nodes in matches for _ in range(int(nodes or 1))][node]


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


def _ancestors() -> Iterator[Process]:
    """From the parent up."""
    pid = os.getppid()
    with contextlib.suppress(OSError):  # it has just ended
        while pid > 0:
            process = _process(pid)
            if process.arguments:
                yield process
            pid = _parent(pid)


def _process(pid: int) -> Process:
    return Process(pid, _started(pid))


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _started(pid: int) -> int:
    fields = _stat(pid)
    if fields[0] in ENDED_STATES:
        raise ProcessLookupError(pid)
    return int(fields[19])


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third, the state, on; the second may hold anything but a last bracket."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    """A file of /proc/PID; what any program put into its command line or name need not be text."""
    return Path(f"/proc/{pid}/{name}").read_text(errors="surrogateescape")


def _is_runner(arguments: list[str]) -> bool:
    return any(Path(argument).name in RUNNERS for argument in arguments[:3])


def _read_runner(arguments: list[str], folder: Path) -> Runner:
    """Reads DeepSpeed's options, which stand before the script."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-H", "--hostfile", type=Path)
    for part in (("-i", "--include"), ("-e", "--exclude"), ("--num_nodes",), ("--num_gpus", "--num_accelerators")):
        parser.add_argument(*part, dest="part", default=None)
    script = next((place for place, argument in enumerate(arguments) if argument.endswith(".py")), len(arguments))
    options, _ = parser.parse_known_args(arguments[:script])
    return Runner(folder / options.hostfile if options.hostfile else None, options.part is not None)
