"""Hostfiles, and whether their hosts can train together: a dry run asks each host by ssh.

A hostfile has one `host slots=GPUs` per line, the number of processes on each machine. If it is missing, DeepSpeed
silently trains on the local machine; of two hosts on a line, it reads only the first. Here both are errors.
"""

import hashlib
import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra_sampler.foundation.config import ConfigError, counted, explained, refuse, shown
from electra_sampler.foundation.files import ROOT, file_sha256, read_file
from electra_sampler.foundation.machine import cores
from pretrain.job.launcher import number_of

LINE = re.compile(r"([A-Za-z0-9_:][\w.:%@-]*)\s+slots=([1-9][0-9]{0,4})", re.ASCII)
"""A host name that ssh cannot mistake for an option, and a plausible number of slots."""
CODE = (
    "electra_sampler/**/*.py",
    "data_prep/**/*.py",
    "pretrain/**/*.py",
    "ds_configs/*.json",
    "electra_sampler/ds_configs/*.json",
)
PACKAGES = ("torch", "deepspeed", "numpy", "safetensors", "pydantic")
REACH_SECONDS = 10
ANSWER_SECONDS = 60

Slots = dict[str, int]
"""Number of processes on each host, in rank order."""


class Target(NamedTuple):
    """The processes that a plan is for."""

    processes: int
    gpu: str | None
    """The GPU that a dry run assumes, by its name in `estimates.GPUS`; `None` for this machine."""
    slots: Slots | None
    """Slots of each host in the hostfile that a dry run checks."""

    @property
    def on_gpu(self) -> bool:
        return self.gpu is not None or torch.cuda.is_available()


def read_hostfile(path: Path) -> Slots:
    """Reads the slots of each host, in order; empty lines and lines starting with # are ignored.

    Raises:
        ConfigError: the file cannot be read, names no host, or has duplicate hosts or malformed lines.
    """
    with explained(
        f"hostfile: cannot read {path}",
        "expected lines such as `node1 slots=8`, see hostfiles/",
        (OSError, UnicodeDecodeError),
    ):
        lines = [line.strip() for line in read_file(path, "hostfile").decode().split("\n")]
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
    refuse(problems)
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

    def check(host: str, count: int) -> tuple[list[str], str]:
        theirs = _ask(host, folders)
        if isinstance(theirs, str):
            return [f"hostfile: {host} {theirs}"], "not checked"
        problems = [*find_differences(host, count, theirs, ours)]
        same = "differs, see below" if problems else "same code, packages and data"
        return problems, f"{_processors(theirs)}, {same}"

    with ThreadPoolExecutor(max_workers=32) as pool:
        checked = [*pool.map(check, slots, slots.values())]
    described = {host: description for host, (_, description) in zip(slots, checked, strict=True)}
    return [problem for problems, _ in checked for problem in problems], described


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
        **{package: next((one.version for one in distributions(name=package)), "missing") for package in PACKAGES},
        **{f"data {key}": file_sha256(path)[:12] if path.is_file() else "missing" for key, path in manifests.items()},
        "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "cores": cores(),
    }


def _processors(host: Mapping[str, Any]) -> str:
    return counted(host["gpus"], "GPU") if host["gpus"] else f"{counted(host['cores'], 'core')} and no GPU"


def _ask(host: str, folders: list[str]) -> dict[str, Any] | str:
    """Returns the `facts` of another host, asked by ssh, or the problem in words."""
    program = f"import json; from pretrain.planning.hosts import facts; print(json.dumps(facts({folders!r})))"
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
