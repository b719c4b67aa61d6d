"""Runs the commands of a study, each once: a finished command leaves a record and is never run again."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import NamedTuple

from pydantic import ValidationError

from electra_sampler.foundation.config import ConfigError, StrictRecord
from electra_sampler.foundation.files import ROOT, remove, write_atomically
from electra_sampler.foundation.machine import cores


class Job(NamedTuple):
    """One command; its output goes to `OUTPUT/logs/NAME.log`."""

    name: str
    command: str
    makes: Path | None = None
    """A folder that the command refuses to overwrite; what an interrupted run left of it is removed."""


class JobRecord(StrictRecord):
    """A command's last run."""

    name: str
    command: str
    code: int
    """Exit code; 0 if the command succeeded."""
    seconds: float
    """Wall time of all its runs that ended, summed."""


class Jobs:
    """The commands of a study in `output`, and the workers that run them."""

    def __init__(self, output: Path, workers: int | None) -> None:
        self.logs = output / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.workers = workers or _devices()
        self._locks: dict[str, Lock] = defaultdict(Lock)
        self._places: SimpleQueue[int] = SimpleQueue()  # each worker's place among GPUs and cores
        for place in range(self.workers):
            self._places.put(place)

    def record(self, job: Job) -> JobRecord | None:
        """Returns the record of the command's last run; `None` if it has never ended.

        Raises:
            ConfigError: the record is damaged.
        """
        path = self.logs / f"{job.name}.json"
        if not path.is_file():
            return None
        try:
            record = JobRecord.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ConfigError(
                f"output: {path} is damaged ({error.errors()[0]['msg']}), expected the record of {job.name}; remove it"
                " and rerun, which runs that command again"
            ) from None
        return record if record.command == job.command else None

    def run(self, job: Job) -> bool:
        """Runs one command from the repository's folder unless it has succeeded before; returns whether it succeeded.

        Waits if another worker is running the command.
        """
        with self._locks[job.name]:
            before = self.record(job)
            if before and before.code == 0:
                return True
            print(f"{time.strftime('%H:%M:%S')} $ {job.command}", flush=True)
            if job.makes:
                remove(job.makes)
            started, place = time.monotonic(), self._places.get()
            try:
                with (self.logs / f"{job.name}.log").open("a") as log:
                    code = subprocess.run(
                        shlex.split(job.command), cwd=ROOT, env=self._environment(place), stdout=log, stderr=log
                    ).returncode
            finally:
                self._places.put(place)
            seconds = time.monotonic() - started
            record = JobRecord(
                name=job.name, command=job.command, code=code, seconds=seconds + (before.seconds if before else 0.0)
            )
            write_atomically(self.logs / f"{job.name}.json", json.dumps(record.model_dump(), indent=1).encode())
            ended = f"exit code {code} after {seconds:.0f} s" + (f"; see {self.logs / job.name}.log" if code else "")
            print(f"{time.strftime('%H:%M:%S')} {job.name}: {ended}", flush=True)
            return code == 0

    def _environment(self, place: int) -> dict[str, str]:
        """Returns the environment of a command: this Python first on the path, and a share of the cores or one GPU."""
        import torch

        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        values = {"PATH": path, "OMP_NUM_THREADS": str(max(1, cores() // self.workers))}
        if torch.cuda.device_count():
            values["CUDA_VISIBLE_DEVICES"] = str(place % torch.cuda.device_count())
        return os.environ | values


def _devices() -> int:
    import torch

    return torch.cuda.device_count() or cores()
