"""Training log: one line per interval, `metrics.jsonl` and curves."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from electra_sampler.foundation.files import require_file_or_folder, write_atomically
from electra_sampler.foundation.progress import duration
from pretrain.runs.curves import WRITERS, Curves, Histogram, Writer, curve_name, curves_of

RECORDS = "metrics.jsonl"
WIDTH = 120
MOST_WAITING = 0.15
"""Tolerated wait for the slowest rank, as a share of its own time (data and forwards), or of a whole step if its
backwards are as slow."""
SHOWN = {
    "generator_loss": "L_G {generator_loss}",
    "sampler_loss": "L_S {sampler_loss}",
    "discriminator_loss": "L_D {discriminator_loss}/{discriminator_entropy}",
    "accuracy_masked": "acc {accuracy_masked}",
    "learning_rate": "lr {learning_rate}",
    "gradient_norm": "grad {gradient_norm}",
    "tokens_per_second": "{tokens_per_second} tok/s",
    "skipped": "skipped {skipped}",
    "slowest_rank_seconds": "slowest rank {slowest_rank} {slowest_rank_seconds}/{median_rank_seconds} s",
}
"""The metrics shown, in this order, each only if the record has a non-zero value; an accuracy of 0 is shown."""
FIRST_TO_GO = (
    *("learning_rate", "sampler_loss", "generator_loss", "gradient_norm", "tokens_per_second", "accuracy_masked"),
    *("discriminator_loss", "slowest_rank_seconds", "skipped"),
)
"""Metrics dropped from a line that would be too long, in this order."""
LEGEND = """\
log lines   L_G, L_S   losses of the generator and of the sampling head, per masked position
            L_D a/b    loss of the discriminator, per position / loss of always predicting the share of replaced tokens
            acc        the discriminator's accuracy at masked positions
            lr, grad   learning rate; gradient norm before clipping
            skipped    steps so far without an update, due to fp16 overflow; shown if there are any
            slowest    the slowest rank, shown if others wait for it 15% of its time: its own seconds / the median's
            all else   """
"""Explanation of the log lines; the caller appends the path of the records."""


class RunLog:
    """Writes the log of a run that starts or resumes at `step`, on the first rank only.

    Records after `step`, left by an interrupted run, are discarded.
    """

    def __init__(self, folder: Path, step: int, total_steps: int, log_to: Iterable[str] = ("tensorboard",)) -> None:
        """`log_to` names the curve writers: `tensorboard`, `wandb`."""
        self.total_steps = total_steps
        self._started = (time.monotonic(), step)
        self.path = folder / RECORDS
        kept = [line.strip() for line, record in records_in(self.path) if record and record["step"] <= step]
        write_atomically(self.path, b"".join(line + b"\n" for line in kept))
        self._file, self._unwritten = self.path.open("ab", buffering=0), b""
        self._writers = [WRITERS[name](folder, step + 1) for name in log_to]

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
        self._draw(step, Curves(histograms=named, texts={curve_name("train", "example"): text}))

    def _draw(self, step: int, curves: Curves) -> None:
        if not self._unwritten:
            self._each(lambda writer: writer.write(step, curves))

    def _each(self, act: Callable[[Writer], None]) -> None:
        """Calls `act` with each writer; one that fails, such as when W&B's process died, is dropped with a warning."""
        for writer in [*self._writers]:
            try:
                act(writer)
            except Exception as error:
                self._writers.remove(writer)
                self.say(f"WARNING: {type(writer).__name__} failed and gets no more curves: {error}")

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
        print(line, flush=True)

    def close(self) -> None:
        self._write_waiting()
        self._file.close()
        self._each(lambda writer: writer.close())


def log_line(step: int, total_steps: int, values: Mapping[str, Any], ending: str) -> str:
    """Returns the log line of one record; `ending` is its last entry, such as the time left."""
    texts = {name: str(value) for name, value in values.items()}
    for name, value in values.items():
        if isinstance(value, float):
            texts[name] = (
                f"{value:.3f}" if 1e-2 <= abs(value) < 1e3 or not value else f"{value:.1e}".replace("e-0", "e-")
            )
    texts["tokens_per_second"] = tqdm.format_sizeof(values.get("tokens_per_second", 0))
    shown = {
        name: template.format_map(texts)
        for name, template in SHOWN.items()
        if values.get(name) or (name == "accuracy_masked" and name in values)
    }
    if values.get("median_rank_seconds", 0) >= (1 - MOST_WAITING) * values.get("slowest_rank_seconds", 0):
        shown.pop("slowest_rank_seconds", None)
    waiting_to_go = iter(FIRST_TO_GO)
    while len(line := "  ".join((f"step {step}/{total_steps}", *shown.values(), ending))) > WIDTH:
        shown.pop(next(waiting_to_go), None)
    return line


def read_metrics(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the run folder's records of one kind, in order."""
    return [record for _, record in records_in(folder / RECORDS) if record and record.get("kind") == kind]


def records_in(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yields each line of a run's log with its record; `None` for any other line, such as one cut by a kill."""
    for line in lines_of(path):
        record = parsed(line)
        yield line, record if isinstance(record, dict) and type(record.get("step")) is int else None


def lines_of(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file; none if there is no such file.

    Raises:
        ConfigError: it is a pipe or device, on which reading might block forever.
        OSError: it cannot be read. A resume, which writes the lines again, must not take it for empty.
    """
    with suppress(FileNotFoundError):
        require_file_or_folder(path, "run")
        with path.open("rb") as file:
            yield from file


def parsed(text: bytes) -> Any:
    """Parses JSON; `None` replaces invalid JSON and numbers that are not finite."""

    def finite(text: str) -> float | None:
        return value if math.isfinite(value := float(text)) else None

    with suppress(ValueError, RecursionError):
        return json.loads(text, parse_constant=lambda _: None, parse_float=finite)
    return None
