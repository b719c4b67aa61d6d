"""Hostfiles: one `host slots=GPUs` per line, the number of processes on each machine.

If the hostfile is missing, DeepSpeed silently trains on the local machine; of two hosts on a line, it reads only the
first. Here both are errors.
"""

import re
from collections import Counter
from pathlib import Path

from foundation.config import ConfigError, counted, shown
from pretrain.job.launcher import Slots, find_runner, launched_slots

LINE = re.compile(r"([A-Za-z0-9_:][\w.:%@-]*)\s+slots=([0-9]{1,5})", re.ASCII)
"""A host name that ssh cannot mistake for an option, and a plausible number of slots."""


def read_hostfile(path: Path) -> Slots:
    """Reads the slots of each host, in order; empty lines and lines starting with # are ignored.

    Raises:
        ConfigError: the file cannot be read or names no host; or lists duplicate hosts and malformed lines.
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
    """Checks that the started processes match `hostfile` and the hostfile that `deepspeed` was given.

    If DeepSpeed was told to use only some of the hosts, its own hostfile is only checked to be valid.

    Raises:
        ConfigError: a hostfile is missing or wrong, or the started hosts and processes differ from it.
    """
    runner = find_runner()
    if runner and runner.hostfile:
        wanted = read_hostfile(runner.hostfile)
        if not runner.is_partial:
            _compare(runner.hostfile, wanted, world_size)
    if hostfile:
        _compare(hostfile, read_hostfile(hostfile), world_size)


def _compare(path: Path, wanted: Slots, world_size: int) -> None:
    launched = launched_slots()
    if launched not in (None, wanted):
        both = (", ".join(f"{host} slots={n}" for host, n in (slots or {}).items()) for slots in (wanted, launched))
        raise ConfigError(f"hostfile: {path} has {', but DeepSpeed has started '.join(both)}; launch with this file")
    if sum(wanted.values()) != world_size:
        raise ConfigError(
            f"hostfile: {path} has {counted(sum(wanted.values()), 'slot')}, but the job has"
            f" {counted(world_size, 'process', 'processes')}; start it with `deepspeed"
            f" --hostfile {path} ...`, or check without starting with --dry_run"
        )
