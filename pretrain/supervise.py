"""Run a pre-training command, and restart it from its last checkpoint when it fails.

python pretrain/supervise.py --max_restarts 3 -- deepspeed --hostfile hostfiles/16v100 pretrain/run.py --preset base

A command that exits with 2 (bad usage) or 75 (stopped on request) is not restarted; its exit code is passed on. A stop
signal is forwarded to everything the command started on this machine. If the supervisor is killed, the ranks save and
stop.
"""

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from threading import Thread
from types import FrameType
from typing import Annotated

from pydantic import Field

from electra_sampler.foundation.command_line import (
    EXIT_BAD_USAGE,
    EXIT_FAILED,
    POSITIONAL,
    parse_options,
    printable,
    run_script,
)
from electra_sampler.foundation.config import ConfigError, StrictConfig, counted, explained
from electra_sampler.foundation.locks import holder, still_held
from pretrain.job.rank_log import LOGS, first_cause, printable_lines, rank_log, read_ends
from pretrain.job.stopping import EXIT_STOPPED, SIGNALS
from pretrain.planning.options import RunOptions

GRACE = 120.0
"""Seconds granted to processes that outlive the command: ranks that lose their launcher save before they exit."""
STARTED = ("pretrain/run.py", "pretrain.run")
"""Endings of the argument that starts training, as a script or as a module; for `electra-sampler` it is `pretrain`."""


class SuperviseOptions(StrictConfig):
    """The command line of `supervise.py`."""

    command: Annotated[tuple[str, ...], POSITIONAL]
    """after --: the launcher and pretrain/run.py with its options"""
    max_restarts: int = Field(default=3, ge=0)
    """maximum number of restarts"""


def main(options: SuperviseOptions) -> int:
    folder, supervised = run_folder_of(options.command), SupervisedCommand(options.command)
    for restarts in range(options.max_restarts + 1):
        before = read_ends(folder)
        code = supervised.run()
        if code == EXIT_BAD_USAGE:
            return code
        if is_complete(folder):
            return 0
        if supervised.stopping or code == EXIT_STOPPED:
            return EXIT_STOPPED
        _say(f"the command ended with code {code} before the run's last step")
        if end := first_cause([record for record in read_ends(folder) if record not in before]):
            _say(f"{end.name}: {end.sentence}; its output is in {rank_log(folder, end.rank)}")
        if restarts < options.max_restarts:
            if who := holder(folder / "lock"):  # rank 0, on another host, may not have noticed or saved yet
                _say(f"waiting up to {GRACE:g} s for the end of {who}")
                still_held(folder / "lock", GRACE)
            newest = max(folder.glob("checkpoints/step-*[0-9]"), default=None)
            begin = newest.name if newest else "the start: no checkpoint was written yet"
            _say(f"restart {restarts + 1} of {options.max_restarts}, from {begin}")
    _say(f"gave up after {counted(options.max_restarts, 'restart')}; each rank's full output is in {folder / LOGS}")
    return EXIT_FAILED


class SupervisedCommand:
    """A command in its own process group, so that a stop signal, and the final kill, reach all of its processes."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command, self.stopping = command, False
        self._process: Popen[str] | None = None
        for number in SIGNALS:
            signal.signal(number, self._pass_on)

    def run(self) -> int:
        """Runs the command until it and everything it started on this machine have ended; returns its exit code.

        Raises:
            ConfigError: there is no such program.
        """
        with explained(
            f"command: cannot start {self.command[0]!r}",
            "expected a program; give its path, such as .venv/bin/deepspeed, or activate the environment that has it",
            OSError,
        ):
            process = self._process = Popen(
                self.command, stdout=PIPE, stderr=STDOUT, text=True, errors="replace", start_new_session=True
            )
        reading = Thread(target=_show, args=(process.stdout,), daemon=True)
        reading.start()
        process.wait()
        reading.join(GRACE)  # the output closes when the last process that holds it ends
        self._kill(signal.SIGKILL)
        reading.join()
        return process.returncode

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Forwards a signal, the first one as SIGUSR1, which ends `deepspeed` at once and is forwarded by `srun`."""
        first, self.stopping = not self.stopping, True
        self._kill(signal.SIGUSR1 if first else number)

    def _kill(self, number: int) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def run_folder_of(command: Sequence[str]) -> Path:
    """Returns the run folder that the supervised command writes to, as its options say.

    Raises:
        ConfigError: the command does not start pre-training, or passes it unknown options.
    """
    for place, part in enumerate(command):
        if part == "pretrain" or part.endswith(STARTED):
            return parse_options(RunOptions, None, command[place + 1 :]).folder
    raise ConfigError(
        f"command: got {' '.join(command)!r}, expected one that runs pretrain/run.py, after --, for example"
        " pretrain/supervise.py -- deepspeed pretrain/run.py --preset base"
    )


def is_complete(folder: Path) -> bool:
    """True if the run's last step has its checkpoint; the exit code cannot tell: a killed launcher can return 0."""
    try:
        steps = json.loads((folder / "run.json").read_text())["run"]["optim"]["steps"]
        return (folder / "checkpoints" / f"step-{steps:08d}").is_dir()
    except (OSError, ValueError, LookupError, TypeError):  # no run yet, or its description is damaged
        return False


def _show(output: Iterable[str]) -> None:
    for line in output:  # the launcher's too, which can hold secrets and control characters
        print(printable_lines(line), end="", flush=True)


def _say(line: str) -> None:
    print(f"supervise: {printable(line)}", flush=True)


if __name__ == "__main__":
    run_script(main)
