"""Training log: one line per interval, `metrics.jsonl` and curves."""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from foundation.files import require_file_or_folder, write_atomically
from foundation.progress import duration
from pretrain.training.curves import Curves, Histogram, Writer, curve_name, curves_of
from pretrain.training.log_line import log_line

RECORDS = "metrics.jsonl"


class RunLog:
    """Writes the log of a run that starts or resumes at `step`, on the first rank only.

    Records after `step`, left by an interrupted run, are discarded.
    """

    def __init__(self, folder: Path, step: int, total_steps: int, log_to: Iterable[str] = ("tensorboard",)) -> None:
        """`log_to` names the curve writers: `tensorboard`, `wandb`, `mlflow`."""
        self.total_steps = total_steps
        self._started = (time.monotonic(), step)
        self.path = folder / RECORDS
        kept = [line for line, record in _whole_lines(self.path) if record["step"] <= step]
        write_atomically(self.path, "".join(line + "\n" for line in kept).encode())
        self._file, self._unwritten = self.path.open("ab", buffering=0), b""
        modules = [importlib.import_module(f"pretrain.training.{name}_writer") for name in log_to]
        self._writers: list[Writer] = [module.Writer(folder, step + 1) for module in modules]

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Writes one record of `kind` ("train" or "held_out") to `metrics.jsonl` and the curves, and prints its line;
        values may be nested.
        """
        self._write_record(kind, step, values)
        self._draw(step, curves_of(kind, values))
        ending = "held out"
        if kind == "train":
            started, first = self._started
            seconds = (time.monotonic() - started) / max(1, step - first) * (self.total_steps - step)
            ending = f"{duration(seconds)} left"
        self.say(log_line(step, self.total_steps, values, ending))

    def write_example(self, step: int, text: str, histograms: Mapping[str, Histogram]) -> None:
        """Writes a decoded sequence as a record of kind "example", and sends it to the curve writers with histograms of
        the same step.
        """
        self._write_record("example", step, {"text": text})
        named = {curve_name("train", name): histogram for name, histogram in histograms.items()}
        examples = {curve_name("train", "example"): text}
        self._draw(step, Curves(histograms=named, texts=examples))

    def _draw(self, step: int, curves: Curves) -> None:
        for writer in self._writers if not self._unwritten else ():
            writer.write(step, curves)

    def _write_record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        self._unwritten += (json.dumps({"kind": kind, "step": step, **values}) + "\n").encode()
        self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            self.say(
                f"WARNING: {self.path}: {error.strerror}; training continues; records are kept until there is room"
            )

    def say(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:  # the launcher has ended: drop the output and let the run stop in order
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def close(self) -> None:
        self._write_waiting()
        self._file.close()
        for writer in self._writers:
            writer.close()


def read_records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the run folder's records of one kind, in order."""
    return [record for _, record in _whole_lines(folder / RECORDS) if record["kind"] == kind]


def _whole_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each valid line of the file with its record; skips a partial last line, left by a killed run."""
    if not path.exists():
        return
    require_file_or_folder(path, "run")
    for line in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            yield line, json.loads(line)
