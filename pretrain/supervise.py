"""Run a pre-training command, and run it again from its last checkpoint when it fails.

python pretrain/supervise.py --max_restarts 3 -- deepspeed --hostfile hostfiles/16v100 pretrain/run.py --preset base

Ended with 2 (bad usage) or 75 (stopped on request) it is not run again, and the code is passed on. A signal to stop is
passed to the command and everything it has started here. Killed itself, it takes the command with it, whose ranks save.
What DeepSpeed's launcher remarks is in RUN/logs/launcher.log.
"""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Annotated

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from foundation.command_line import EXIT_BAD_USAGE, POSITIONAL, parse_options, printable, run_command
from foundation.config import ConfigError, StrictConfig
from foundation.locks import LOOK_EVERY, holder
from pretrain.job.last_words import LastWords, Listening, blamed
from pretrain.job.rank_log import LOGS, printable_lines

EXIT_FAILED, EXIT_STOPPED = 1, 75  # see stopping.py, which needs no import of torch either
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
GRACE = 120.0
"""Seconds that what the command leaves behind has to end by itself: ranks whose launcher is gone save first."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2)."""
SHOWN_LINES = 15
"""Last lines shown of a rank that ended the job, or of a command whose ranks do not tell."""

MOST_NAMED = 3
REMARK = re.compile(r"\[[\d-]+ [\d:,]+\] \[(?:DEBUG|INFO|WARNING)\] \[\w+\.py:\d+:")
"""How DeepSpeed's launcher begins a line that nobody need read."""
ENDED = re.compile(r"\[[\d-]+ [\d:,]+\] \[ERROR\] \[launch\.py:.* exits with return code = (-?\d+)$")
"""How it says with which code a rank has ended."""
LAUNCHER_LOG = "launcher.log"


class SuperviseOptions(StrictConfig):
    """The command line."""

    command: Annotated[tuple[str, ...], POSITIONAL]
    """after --: the launcher and pretrain/run.py with its options"""
    max_restarts: int = Field(default=3, ge=0)
    """how often the command is run again"""


def main(options: SuperviseOptions) -> int:
    folder = run_folder_of(options.command)
    supervised = Supervised(options.command, folder / LOGS / LAUNCHER_LOG)
    for restarts in range(options.max_restarts + 1):
        started, listening = time.monotonic(), Listening(folder)
        code = supervised.run()
        ended = f"after {time.monotonic() - started:.0f} s with code {code}"
        if code == EXIT_BAD_USAGE:
            return code
        if is_complete(folder):
            return 0
        if supervised.stopping or code == EXIT_STOPPED:
            return EXIT_STOPPED
        _say(f"the command ended {ended} before the run's last step")
        _say(*accounts(listening.words()) or _indented("its last lines:", supervised.last_lines))
        if restarts < options.max_restarts:
            wait_for_end(folder)
            _say(f"restart {restarts + 1} of {options.max_restarts}, from {_newest(folder)}")
    _say(f"gave up after {options.max_restarts} restarts; the whole output of each rank is in {folder / 'logs'}")
    return EXIT_FAILED


class Supervised:
    """A command in a process group of its own, which its end or a signal to stop reaches as a whole."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """`log` takes what the launcher remarks, if its folder is there: a run that is refused makes none."""
        self.command, self._log = command, log
        self.stopping = False
        """A signal asked for a stop."""
        self.last_lines: deque[str] = deque(maxlen=SHOWN_LINES)
        self._remarks: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        for number in SIGNALS:
            signal.signal(number, self._pass_on)

    def run(self) -> int:
        """Runs it to its end and to that of everything it started on this machine; returns its exit code.

        Raises:
            ConfigError: there is no such program.
        """
        self.last_lines.clear()
        process = self._process = self._start()
        reading = threading.Thread(target=self._pass_through, args=(process.stdout,), daemon=True)
        reading.start()
        process.wait()
        reading.join(GRACE)  # the output ends when the last process that holds it does
        if reading.is_alive():
            _say(f"ending what the command has left behind: it did not end within {GRACE:g} s")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        reading.join()
        self._keep_remarks()
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
                preexec_fn=_end_with(os.getpid()),
            )
        except OSError as error:
            raise ConfigError(
                f"command: cannot start {self.command[0]!r} ({error.strerror}), expected a program; give its path, such"
                " as .venv/bin/deepspeed, or activate the environment that has it"
            ) from None

    def _pass_through(self, output: IO[str]) -> None:
        for line in output:
            self.last_lines.append(line.rstrip())
            if self._is_remark(line):
                self._remarks.append(line)
            else:
                print(printable_lines(line), end="", flush=True)

    def _is_remark(self, line: str) -> bool:
        """Whether a line is the launcher's and nobody need read it: an end that was asked for is no error."""
        ended = ENDED.match(line)
        asked_for = ended is not None and (self.stopping or int(ended[1]) == EXIT_STOPPED)
        return asked_for or REMARK.match(line) is not None

    def _keep_remarks(self) -> None:
        if not self._remarks:
            return
        with contextlib.suppress(OSError), self._log.open("a") as file:
            file.writelines(self._remarks)
        self._remarks.clear()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C goes on as SIGUSR1, at first: by it `deepspeed` dies silently, and `srun` tells its ranks."""
        first, self.stopping = not self.stopping, True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGUSR1 if first and number == signal.SIGINT else number)


def _end_with(supervisor: int) -> Callable[[], None]:
    """What the command is to do first: have the system tell it to stop when the supervisor ends, however it does.

    Of DeepSpeed's launcher SIGUSR1 is the end, which its ranks notice; `srun` passes it on (docs/operations.md).
    """
    prctl = ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
        if os.getppid() != supervisor:
            os._exit(EXIT_FAILED)

    return tie


def wait_for_end(folder: Path) -> None:
    """Waits for a first rank that another host has, and that has yet to save or to notice, as long as it may take."""
    from pretrain.training.run_folder import LOCK

    deadline = time.monotonic() + GRACE
    if who := holder(folder / LOCK):
        _say(f"waiting up to {GRACE:g} s for the end of {who}")
    while time.monotonic() < deadline and holder(folder / LOCK):
        time.sleep(LOOK_EVERY)


def run_folder_of(command: Sequence[str]) -> Path:
    """Where the supervised run writes.

    Raises:
        ConfigError: the command starts no pre-training, or gives it options it does not know.
    """
    from pretrain.training.plan import RunOptions

    script = next((place for place, part in enumerate(command) if part.endswith("pretrain/run.py")), None)
    if script is None:
        raise ConfigError(
            f"command: got {' '.join(command)!r}, expected one that runs pretrain/run.py, after --, for example"
            " pretrain/supervise.py -- deepspeed pretrain/run.py --preset base"
        )
    options = parse_options(RunOptions, None, command[script + 1 :])
    return options.output or Path("runs") / options.preset


def accounts(ranks: list[LastWords]) -> list[str]:
    """The last words of the ranks that ended the job, each under its name; empty where the logs do not tell."""
    lines = []
    for rank in blamed(ranks)[:MOST_NAMED]:
        how = "" if rank.tells_of_its_end else " ended without a word, as a process does that is killed"
        lines += _indented(f"{rank.name}{how}; the end of {rank.log}:", rank.last_lines(SHOWN_LINES))
    return lines


def _indented(title: str, lines: Iterable[str]) -> list[str]:
    return [title, *(f"    {line}" for line in lines)]


def is_complete(folder: Path) -> bool:
    """Whether the run's last step has its checkpoint; the exit code does not say so: a killed launcher can give 0."""
    from pretrain.training.run_folder import read_run

    try:
        steps = read_run(folder).run.optim.steps
    except ConfigError:
        return False
    return (folder / "checkpoints" / f"step-{steps:08d}").is_dir()


def _newest(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("checkpoints/step-*") if path.suffix == "")
    return names[-1] if names else "the start: no checkpoint was written yet"


def _say(*lines: str) -> None:
    for line in lines:
        print(f"supervise: {printable(line)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main, SuperviseOptions, __doc__))
