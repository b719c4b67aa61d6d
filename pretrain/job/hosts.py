"""Checks that a hostfile's hosts can train together: reachable by ssh, with the same code, packages, data and time."""

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from foundation.config import counted, shown
from foundation.files import ROOT, file_sha256
from foundation.machine import cores, multiplies_bf16
from pretrain.job.launcher import Slots

CODE = ("electra_sampler/*.py", "foundation/**/*.py", "data_prep/**/*.py", "pretrain/**/*.py", "ds_configs/*.json")
PACKAGES = ("torch", "deepspeed", "numpy", "safetensors", "pydantic")
REACH_SECONDS = 10
ANSWER_SECONDS = 60
LARGEST_SKEW = 5.0
"""Tolerated difference between clocks in seconds; more makes the logs of several hosts misleading."""
KEEP_ALIVE = "ServerAliveInterval"


def facts(data: Sequence[str]) -> dict[str, Any]:
    """Returns a description of this host: versions of code, packages and data, which must be equal on all hosts, its
    clock's time, and its numbers of GPUs and cores.
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
        "time": time.time(),
        "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "cores": cores(),
        "bf16": multiplies_bf16(),
    }


class Hosts(NamedTuple):
    """The result of checking a hostfile's machines; each string is one line to print."""

    problems: list[str]
    found: dict[str, str]
    """A description of each host, in rank order."""
    notes: list[str]


def check_hosts(slots: Slots, data: Sequence[Path], precision: str) -> Hosts:
    """Checks, on all hosts in parallel, whether they can train together in this precision."""
    folders = [str(folder.resolve()) for folder in data]
    ours = facts(folders)
    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = dict(zip(slots, pool.map(lambda host: _ask(host, folders), slots), strict=True))
    problems, found = [], {}
    if len(slots) > 1 and not shutil.which("pdsh"):
        problems.append(
            "hostfile: there is no pdsh on this machine, which DeepSpeed uses to start several hosts; install it"
        )
    for host, answer in answers.items():
        if isinstance(answer, str):
            found[host], differences = "not checked", [answer]
        else:
            differences = list(find_differences(host, slots[host], answer, ours, precision))
            same = "differs, see below" if differences else "same code, packages and data"
            found[host] = f"{_processors(answer)}, {same}, clock within {answer['skew'] + 0.05:.1f} s"
        problems += differences
    return Hosts(problems, found, list(_keep_alive_notes(slots)))


def _processors(host: Mapping[str, Any]) -> str:
    return counted(host["gpus"], "GPU") if host["gpus"] else f"{counted(host['cores'], 'core')} and no GPU"


def _ask(host: str, folders: list[str]) -> dict[str, Any] | str:
    """Asks a host by ssh; returns its `facts` with "skew", the least difference of its clock from ours in seconds, or
    an error message.
    """
    program = f"import json; from pretrain.job.hosts import facts; print(json.dumps(facts({folders!r})))"
    command = f"cd {shlex.quote(str(ROOT))} && {shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={REACH_SECONDS}"]
    asked = time.time()
    try:
        answer = subprocess.run(
            ["ssh", *options, host, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"hostfile: {host} did not answer within {ANSWER_SECONDS} s; make sure that `ssh {host} true` works"
    except FileNotFoundError:
        return "hostfile: there is no ssh on this machine, which DeepSpeed needs for several hosts; install it"
    last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    if answer.returncode == 255:  # ssh's own error
        return f"hostfile: {host} cannot be reached: {last}; make sure that `ssh {host} true` works without a password"
    if answer.returncode:
        return (
            f"hostfile: {host} lacks this code in {ROOT} or this Python, {sys.executable}; install both there: {last}"
        )
    try:
        found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return f"hostfile: {host} answers {shown(answer.stdout)}; make sure that `ssh {host} true` prints nothing"
    early, late = found["time"] - time.time(), found["time"] - asked  # its clock was read between these two moments
    found["skew"] = max(0.0, early, -late)
    return found


def find_differences(
    host: str, slots: int, theirs: Mapping[str, Any], ours: Mapping[str, Any], precision: str
) -> Iterator[str]:
    """Yields each problem that would keep a host from training with this machine, given the `facts` of both."""
    for key in ours.keys() - {"time", "gpus", "cores", "bf16"}:
        if theirs.get(key) != ours[key]:
            yield f"hostfile: {host} has {key} {theirs.get(key)}, this machine {ours[key]}; make them equal"
    if theirs["skew"] > LARGEST_SKEW:
        yield f"hostfile: the clock of {host} differs by {theirs['skew']:.0f} s from this machine's; synchronize them"
    if slots > (theirs["gpus"] or theirs["cores"]):
        yield f"hostfile: {host} has slots={slots}, but only {_processors(theirs)}; give it at most that many slots"
    if precision == "fp16" and not theirs["gpus"]:
        instead = f"ds_configs/zero1_{'bf16' if theirs['bf16'] else 'fp32'}.json"
        yield f"deepspeed_config: fp16 needs GPUs, but {host} has none; add --deepspeed_config {instead}"


def _keep_alive_notes(slots: Slots) -> Iterator[str]:
    """Yields a note if ssh sends no keep-alives: without them, pdsh waits forever for a host that lost its network."""
    given = KEEP_ALIVE.lower() in os.environ.get("PDSH_SSH_ARGS_APPEND", "").lower()
    if len(slots) < 2 or given or not shutil.which("ssh"):
        return
    for host in slots:
        settings = subprocess.run(["ssh", "-G", host], capture_output=True, text=True).stdout.splitlines()
        if f"{KEEP_ALIVE.lower()} 0" in settings:
            yield (
                f"note        ssh to {host} has no {KEEP_ALIVE}: `deepspeed` would wait forever for a host that loses"
                f" its network; export PDSH_SSH_ARGS_APPEND='-o {KEEP_ALIVE}=15'"
            )
            return
