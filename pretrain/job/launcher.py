"""Launchers of a job: their variables and processes, hostfiles, and whether the hosts can train together.

A hostfile has one `host slots=GPUs` per line, the number of processes on each machine. If it is missing, DeepSpeed
silently trains on the local machine; of two hosts on a line, it reads only the first. Here both are errors.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from foundation.config import ConfigError, counted, shown
from foundation.files import ROOT, file_sha256
from foundation.machine import cores

SUPERVISORS = ("supervise", "supervise.py")
"""A process is the supervisor if one of its first three arguments ends like this."""
LINE = re.compile(r"([A-Za-z0-9_:][\w.:%@-]*)\s+slots=([1-9][0-9]{0,4})", re.ASCII)
"""A host name that ssh cannot mistake for an option, and a plausible number of slots."""
CODE = ("electra_sampler/*.py", "foundation/**/*.py", "data_prep/**/*.py", "pretrain/**/*.py", "ds_configs/*.json")
PACKAGES = ("torch", "deepspeed", "numpy", "safetensors", "pydantic")
REACH_SECONDS = 10
ANSWER_SECONDS = 60

Slots = dict[str, int]
"""Number of processes on each host, in rank order."""


def launchers() -> list[psutil.Process]:
    """Returns the processes with which this rank must end: its launchers on this machine, and the supervisor.

    They are the rank's parent and, under DeepSpeed, all processes with the job's arguments and their parents:

        one host           deepspeed -> node launcher -> ranks
        several, by pdsh   deepspeed -> pdsh -> ssh  ~~>  sshd -> node launcher -> ranks
    """
    found = psutil.Process().parents()[:1] if "RANK" in os.environ else []  # none above a container's first process
    job = {part for parent in found for part in _arguments(parent) if part.startswith(("--world_info=", "--master_"))}
    for process in psutil.process_iter() if job else ():
        if job <= set(_arguments(process)):
            found += [process, *process.parents()[:1]]
    above = (ancestor for process in (psutil.Process(), *found) for ancestor in process.parents())
    return found + [one for one in above if any(part.endswith(SUPERVISORS) for part in _arguments(one)[:3])]


def _arguments(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):  # it has just ended, or is another user's
        return process.cmdline()
    return []


def is_alive(process: psutil.Process) -> bool:
    """Returns true if the process is running; a zombie counts as ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
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


def read_hostfile(path: Path) -> Slots:
    """Reads the slots of each host, in order; empty lines and lines starting with # are ignored.

    Raises:
        ConfigError: the file cannot be read, names no host, or has duplicate hosts or malformed lines.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"hostfile: cannot read {path} ({reason}); expected lines such as `node1 slots=8`, see hostfiles/"
        ) from None
    slots: Slots = {}
    problems = []
    for number, line in enumerate(lines, 1):
        matched = LINE.fullmatch(line)
        if matched and matched[1] not in slots:
            slots[matched[1]] = int(matched[2])
        elif line and not line.startswith("#"):
            expected = "one line for each host" if matched else "`host slots=N` with N of 1 or more"
            problems.append(f"hostfile: {path} line {number}: got {shown(line)}, expected {expected}")
    if not slots and not problems:
        problems.append(f"hostfile: {path} names no host; expected lines such as `node1 slots=8`")
    if problems:
        raise ConfigError(*problems)
    return slots


def require_launch(hostfile: Path) -> None:
    """Checks that as many hosts and processes were started as the hostfile has.

    Raises:
        ConfigError: the hostfile is missing or wrong, or the numbers of hosts and processes differ from it.
    """
    slots = read_hostfile(hostfile)
    processes, hosts = number_of("WORLD_SIZE", "1"), number_of("CROSS_SIZE", str(len(slots)))  # DeepSpeed sets both
    if (len(slots), sum(slots.values())) != (hosts, processes):
        raise ConfigError(
            f"hostfile: {hostfile} has {counted(sum(slots.values()), 'slot')} on {counted(len(slots), 'host')}, but the"
            f" job has {counted(processes, 'process', 'processes')} on {counted(hosts, 'host')}; start it with"
            f" `deepspeed --hostfile {hostfile} ...`, or check without starting with --dry_run"
        )


def facts(data: Sequence[str]) -> dict[str, Any]:
    """Returns a description of this host: versions of code, packages and data, which must be equal on all hosts, and
    the numbers of GPUs and cores.
    """
    manifests = {folder: Path(folder, "manifest.json") for folder in data}
    code = hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        code.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return {
        "code": code.hexdigest()[:12],
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
        **{f"data {key}": file_sha256(path)[:12] if path.is_file() else "missing" for key, path in manifests.items()},
        "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "cores": cores(),
    }


def check_hosts(slots: Slots, data: Sequence[Path]) -> tuple[list[str], dict[str, str]]:
    """Checks, on all hosts in parallel, whether they can train together.

    Returns the problems, one line each, and a description of each host, in rank order.
    """
    needed = ("ssh", "pdsh") if len(slots) > 1 else ("ssh",)
    if missing := [program for program in needed if not shutil.which(program)]:
        problem = f"hostfile: there is no {' and no '.join(missing)} on this machine; install what is missing"
        return [problem], dict.fromkeys(slots, "not checked")
    folders = [str(folder.resolve()) for folder in data]
    ours = facts(folders)
    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = [*pool.map(lambda host: _ask(host, folders), slots)]
    problems, found = [], {}
    for (host, count), answer in zip(slots.items(), answers, strict=True):
        if isinstance(answer, str):
            differences, found[host] = [f"hostfile: {host} {answer}"], "not checked"
        else:
            differences = [*find_differences(host, count, answer, ours)]
            same = "differs, see below" if differences else "same code, packages and data"
            found[host] = f"{_processors(answer)}, {same}"
        problems += differences
    return problems, found


def _processors(host: Mapping[str, Any]) -> str:
    return counted(host["gpus"], "GPU") if host["gpus"] else f"{counted(host['cores'], 'core')} and no GPU"


def _ask(host: str, folders: list[str]) -> dict[str, Any] | str:
    """Returns the `facts` of another host, asked by ssh, or the problem in words."""
    program = f"import json; from pretrain.job.launcher import facts; print(json.dumps(facts({folders!r})))"
    command = f"cd {shlex.quote(str(ROOT))} && {shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    ssh = ["ssh", "-n", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={REACH_SECONDS}", host, command]
    try:
        answer = subprocess.run(ssh, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"did not answer within {ANSWER_SECONDS} s; make sure that `ssh {host} true` works"
    last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    if answer.returncode == 255:  # ssh's own error
        return f"cannot be reached: {last}; make sure that `ssh {host} true` works without a password"
    if answer.returncode:
        return f"lacks this code in {ROOT} or this Python, {sys.executable}; install both there: {last}"
    try:
        return dict(json.loads(answer.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        return f"answers {shown(answer.stdout)}; make sure that `ssh {host} true` prints nothing"


def find_differences(host: str, slots: int, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    """Yields the problems that would keep a host from training with this machine, given the `facts` of both."""
    for key, value in ours.items():
        if key not in ("gpus", "cores") and theirs.get(key) != value:
            yield f"hostfile: {host} has {key} {theirs.get(key)}, this machine {value}; make them equal"
    if slots > (theirs["gpus"] or theirs["cores"]):
        yield f"hostfile: {host} has slots={slots}, but only {_processors(theirs)}; give it at most that many slots"
