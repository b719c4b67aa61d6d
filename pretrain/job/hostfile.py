"""Hostfiles: machines and how many processes each takes, one `host slots=GPUs` per line.

DeepSpeed silently trains on the local machine when the hostfile is missing, and reads only the first of two hosts in a
line; here each of these is an error.
"""

import re
from collections import Counter
from pathlib import Path

from foundation.config import ConfigError, shown
from pretrain.job.launcher import Slots, find_runner, launched_slots

LINE = re.compile(r"([A-Za-z0-9_:][\w.:%@-]*)\s+slots=([0-9]{1,5})", re.ASCII)
"""A name that ssh takes for no option, and a number that a cluster may have."""


def read_hostfile(path: Path) -> Slots:
    """Slots of each host, in order; empty lines and lines that start with # mean nothing.

    Raises:
        ConfigError: no such file, no host, a duplicate host, and every line that is not `host slots=N`.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"hostfile: cannot read {path} ({reason}); expected lines such as `node1 slots=8`, see hostfiles/"
        ) from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    matches = [(number, line, LINE.fullmatch(line)) for number, line in numbered]
    problems = [
        f"hostfile: {path} line {number}: got {shown(line)}, expected `host slots=N` with N of 1 or more"
        for number, line, matched in matches
        if not matched or int(matched[2]) == 0
    ]
    hosts = [(matched[1], int(matched[2])) for _, _, matched in matches if matched]
    problems += [
        f"hostfile: {path}: {host} is listed {times} times; give it one line with all its slots"
        for host, times in Counter(host for host, _ in hosts).items()
        if times > 1
    ]
    if not numbered:
        problems.append(f"hostfile: {path} names no host; expected lines such as `node1 slots=8`")
    if problems:
        raise ConfigError(*problems)
    return dict(hosts)


def require_launch(hostfile: Path | None, world_size: int) -> None:
    """Refuses processes that are not those of the hostfile: `hostfile`, and the one that `deepspeed` was given.

    Where DeepSpeed was told to use a part of the hosts, its hostfile must only be there.

    Raises:
        ConfigError: a hostfile that is missing or wrong, or hosts and processes that differ from it.
    """
    runner = find_runner()
    if runner and runner.hostfile:
        wanted = read_hostfile(runner.hostfile)
        if not runner.takes_part:
            _compare(runner.hostfile, wanted, world_size)
    if hostfile:
        _compare(hostfile, read_hostfile(hostfile), world_size)


def _compare(path: Path, wanted: Slots, world_size: int) -> None:
    launched = launched_slots()
    if launched not in (None, wanted):
        both = (", ".join(f"{host} slots={n}" for host, n in (slots or {}).items()) for slots in (wanted, launched))
        raise ConfigError(f"hostfile: {path} says {', but DeepSpeed has started '.join(both)}")
    if sum(wanted.values()) != world_size:
        raise ConfigError(
            f"hostfile: {path} has {sum(wanted.values())} slots, but {world_size} processes were started; start them by"
            f" `deepspeed --hostfile {path} ...`, or check without starting by --dry_run"
        )
