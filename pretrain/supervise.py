"""Run a pre-training command, and restart it from its last checkpoint when it fails.

python pretrain/supervise.py --max_restarts 3 -- deepspeed --hostfile hostfiles/16v100 pretrain/run.py --preset base

A command that exits with 2 (bad usage) or 75 (stopped on request) is not restarted; its exit code is passed on. A stop
signal is forwarded to the command and to everything it started on this machine. If the supervisor itself is killed, the
command is told to stop, and its ranks save first. DeepSpeed's launcher messages go to RUN/logs/launcher.log.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Annotated

from pydantic import Field

from foundation.command_line import EXIT_BAD_USAGE, EXIT_FAILED, POSITIONAL, parse_options, printable, run_command
from foundation.config import ConfigError, StrictConfig, counted
from foundation.locks import holder, still_held
from pretrain.job.end_record import LOGS, EndRecord, first_causes, read_records
from pretrain.job.rank_log import last_lines, printable_lines, rank_log
from pretrain.job.stopping import EXIT_STOPPED, SIGNALS
from pretrain.training.options import RunOptions

GRACE = 120.0
"""Seconds granted to processes that outlive the command: ranks that lose their launcher save before they exit."""
PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl(2): the signal to send this process when its parent dies."""
_LIBC = ctypes.CDLL(None)
SHOWN_LINES = 25
"""Lines shown from the end of a rank's log (or of the command's output, if no rank left a record): enough for the stack
of a crash."""
MOST_NAMED = 3
"""Ranks whose end is reported."""
STARTED = ("pretrain/run.py", "pretrain.run")
"""Endings of the training script's name: in a checkout, or as a module. `electra-sampler` calls it `pretrain`."""
REMARK = re.compile(r"\[[\d-]+ [\d:,]+\] \[(?:DEBUG|INFO|WARNING)\] \[\w+\.py:\d+:")
"""Start of a launcher line that nobody needs to read; it goes to the log only."""
ENDED = re.compile(r"\[[\d-]+ [\d:,]+\] \[ERROR\] \[launch\.py:.* exits with return code = (-?\d+)$")
"""The launcher's line that reports a rank's exit code."""


class SuperviseOptions(StrictConfig):
    """The command line of `supervise.py`."""

    command: Annotated[tuple[str, ...], POSITIONAL]
    """after --: the launcher and pretrain/run.py with its options"""
    max_restarts: int = Field(default=3, ge=0)
    """maximum number of restarts"""


def main(options: SuperviseOptions) -> int:
    folder = run_folder_of(options.command)
    supervised = Supervised(options.command, folder / LOGS / "launcher.log")
    for restarts in range(options.max_restarts + 1):
        started, before = time.monotonic(), read_records(folder)
        code = supervised.run()
        seconds = time.monotonic() - started
        if code == EXIT_BAD_USAGE:
            return code
        if is_complete(folder):
            return 0
        if supervised.stopping or code == EXIT_STOPPED:
            return EXIT_STOPPED
        _say(f"the command ended after {seconds:.0f} s with code {code} before the run's last step")
        causes = first_causes([record for record in read_records(folder) if record not in before])
        _say(*accounts(folder, causes) or _indented("its last lines:", supervised.last_lines))
        if restarts < options.max_restarts:
            if who := holder(folder / "lock"):  # rank 0, on another host, may not have noticed or saved yet
                _say(f"waiting up to {GRACE:g} s for the end of {who}")
                still_held(folder / "lock", GRACE)
            newest = max(folder.glob("checkpoints/step-*[0-9]"), default=None)
            begin = newest.name if newest else "the start: no checkpoint was written yet"
            _say(f"restart {restarts + 1} of {options.max_restarts}, from {begin}")
    _say(f"gave up after {counted(options.max_restarts, 'restart')}; each rank's full output is in {folder / LOGS}")
    return EXIT_FAILED


class Supervised:
    """A command in its own process group, so that a stop signal, and the final kill, reach all of its processes."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """`log` receives the launcher's messages if its folder exists; a refused run creates no folder."""
        self.command, self._log = command, log
        self.stopping = False
        """True once a signal has asked for a stop."""
        self.last_lines: deque[str] = deque(maxlen=SHOWN_LINES)
        self._process: subprocess.Popen[str] | None = None
        for number in SIGNALS:
            signal.signal(number, self._pass_on)

    def run(self) -> int:
        """Runs the command until it and everything it started on this machine have ended; returns its exit code.

        Raises:
            ConfigError: there is no such program.
        """
        self.last_lines.clear()
        process = self._process = self._start()
        remarks: list[str] = []
        reading = threading.Thread(target=self._pass_through, args=(process.stdout, remarks), daemon=True)
        reading.start()
        process.wait()
        reading.join(GRACE)  # the output closes when the last process that holds it ends
        if reading.is_alive():
            _say(f"killing the processes that the command left running: they did not end within {GRACE:g} s")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        reading.join()
        if remarks:
            with contextlib.suppress(OSError), self._log.open("a") as file:
                file.writelines(remarks)
        return process.returncode

    def _start(self) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=partial(_end_with, os.getpid()),
            )
        except OSError as error:
            raise ConfigError(
                f"command: cannot start {self.command[0]!r} ({error.strerror}), expected a program; give its path, such"
                " as .venv/bin/deepspeed, or activate the environment that has it"
            ) from None

    def _pass_through(self, output: IO[str], remarks: list[str]) -> None:
        for line in output:
            self.last_lines.append(line.rstrip())
            ended = ENDED.match(line)
            asked_for = ended is not None and (self.stopping or int(ended[1]) == EXIT_STOPPED)  # not an error
            if asked_for or REMARK.match(line):
                remarks.append(printable_lines(line))
            else:
                print(printable_lines(line), end="", flush=True)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Forwards a signal; the first Ctrl-C as SIGUSR1, which ends `deepspeed` silently and which `srun` forwards."""
        first, self.stopping = not self.stopping, True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGUSR1 if first and number == signal.SIGINT else number)


def _end_with(supervisor: int) -> None:
    """Runs in the new process before the command: asks Linux to send it SIGUSR1 whenever the supervisor ends.

    SIGUSR1 ends DeepSpeed's launcher, which its ranks notice; `srun` forwards it to the ranks
    (docs/evidence/launchers.md).
    """
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != supervisor:
        os._exit(EXIT_FAILED)


def run_folder_of(command: Sequence[str]) -> Path:
    """Returns the run folder that the supervised command writes to, as its options say.

    Raises:
        ConfigError: the command does not start pre-training, or passes it unknown options.
    """
    named = (place for place, part in enumerate(command) if part == "pretrain" or part.endswith(STARTED))
    script = next(named, None)
    if script is None:
        raise ConfigError(
            f"command: got {' '.join(command)!r}, expected one that runs pretrain/run.py, after --, for example"
            " pretrain/supervise.py -- deepspeed pretrain/run.py --preset base"
        )
    options = parse_options(RunOptions, None, command[script + 1 :])
    return options.output or Path("runs") / options.preset


def is_complete(folder: Path) -> bool:
    """True if the run's last step has its checkpoint; the exit code cannot tell: a killed launcher can return 0."""
    try:
        steps = json.loads((folder / "run.json").read_text())["run"]["optim"]["steps"]
        return (folder / "checkpoints" / f"step-{steps:08d}").is_dir()
    except (OSError, ValueError, LookupError, TypeError):  # no run yet, or its description is damaged
        return False


def accounts(folder: Path, causes: Sequence[EndRecord]) -> list[str]:
    """Returns lines that explain why the first `MOST_NAMED` of these ranks ended, with the end of each one's log."""
    lines = []
    for end in causes[:MOST_NAMED]:
        title = f"{end.name}: {end.sentence}; the end of {rank_log(folder, end.rank)}:"
        lines += _indented(title, last_lines(folder, end.rank, SHOWN_LINES))
    return lines


def _indented(title: str, lines: Iterable[str]) -> list[str]:
    return [title, *(f"    {line}" for line in lines)]


def _say(*lines: str) -> None:
    for line in lines:
        print(f"supervise: {printable(line)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main, SuperviseOptions, __doc__))
