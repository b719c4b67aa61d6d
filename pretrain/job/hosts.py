"""Whether the machines of a hostfile can train together: reached by ssh, same code, packages, data and time."""

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

from foundation.config import shown
from foundation.files import ROOT, file_sha256
from pretrain.job.launcher import Slots

CODE = ("electra_sampler/*.py", "foundation/**/*.py", "data_prep/**/*.py", "pretrain/**/*.py", "ds_configs/*.json")
PACKAGES = ("torch", "deepspeed", "numpy", "safetensors", "pydantic")
REACH_SECONDS = 10
ANSWER_SECONDS = 60
LARGEST_SKEW = 5.0
"""Seconds between clocks; more makes logs of several hosts misleading."""
KEEP_ALIVE = "ServerAliveInterval"


def facts(data: Sequence[str]) -> dict[str, Any]:
    """What must be the same on every host, and its time, GPUs and cores."""
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
        "cores": os.cpu_count(),
    }


class Hosts(NamedTuple):
    """What was found out about the machines of a hostfile, one line each."""

    problems: list[str]
    found: dict[str, str]
    """By host, in the order of their ranks."""
    notes: list[str]


def check_hosts(slots: Slots, data: Sequence[Path], precision: str) -> Hosts:
    """Asks all hosts at once whether they can train together in this precision."""
    folders = [str(folder.resolve()) for folder in data]
    ours = facts(folders)
    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = dict(zip(slots, pool.map(lambda host: _ask(host, folders), slots), strict=True))
    problems, found = [], {}
    if len(slots) > 1 and not shutil.which("pdsh"):
        problems.append(
            "hostfile: there is no pdsh on this machine, by which DeepSpeed starts several hosts; install it"
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
    return f"{host['gpus']} GPUs" if host["gpus"] else f"{host['cores']} cores and no GPU"


def _ask(host: str, folders: list[str]) -> dict[str, Any] | str:
    """The host's facts, and how its clock differs from ours; or why it has not told them."""
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
        return f"hostfile: {host} has not answered for {ANSWER_SECONDS} s; see that `ssh {host} true` works"
    except FileNotFoundError:
        return "hostfile: there is no ssh on this machine, which DeepSpeed needs for several hosts; install it"
    last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    if answer.returncode == 255:  # ssh's own
        return f"hostfile: {host} cannot be reached: {last}; see that `ssh {host} true` works without a password"
    if answer.returncode:
        return f"hostfile: {host} has no such code or Python at {ROOT} and {sys.executable}: {last}"
    try:
        found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return f"hostfile: {host} answers {shown(answer.stdout)}; see that `ssh {host} true` prints nothing"
    early, late = found["time"] - time.time(), found["time"] - asked  # its clock was read between the two
    found["skew"] = max(0.0, early, -late)
    return found


def find_differences(
    host: str, slots: int, theirs: Mapping[str, Any], ours: Mapping[str, Any], precision: str
) -> Iterator[str]:
    """What of a host's facts would keep it from training with this machine."""
    for key in ours.keys() - {"time", "gpus", "cores"}:
        if theirs.get(key) != ours[key]:
            yield f"hostfile: {host} has {key} {theirs.get(key)}, this machine {ours[key]}; make them the same"
    if theirs["skew"] > LARGEST_SKEW:
        yield f"hostfile: the clock of {host} differs by {theirs['skew']:.0f} s from this machine's; synchronise them"
    if slots > (theirs["gpus"] or theirs["cores"]):
        yield f"hostfile: {host} slots={slots}, but it has {_processors(theirs)}; give it at most so many slots"
    if precision == "fp16" and not theirs["gpus"]:
        yield f"deepspeed_config: fp16, but {host} has no GPU; add --deepspeed_config ds_configs/zero1_bf16.json"


def _keep_alive_notes(slots: Slots) -> Iterator[str]:
    """Without keep-alives pdsh waits for ever for a host that was cut off."""
    given = KEEP_ALIVE.lower() in os.environ.get("PDSH_SSH_ARGS_APPEND", "").lower()
    if len(slots) < 2 or given or not shutil.which("ssh"):
        return
    for host in slots:
        settings = subprocess.run(["ssh", "-G", host], capture_output=True, text=True).stdout.splitlines()
        if f"{KEEP_ALIVE.lower()} 0" in settings:
            yield (
                f"note        ssh to {host} has no {KEEP_ALIVE}: `deepspeed` would wait for ever for a host that is cut"
                f" off; export PDSH_SSH_ARGS_APPEND='-o {KEEP_ALIVE}=15'"
            )
            return
