"""Training log: one line per interval, `metrics.jsonl` and TensorBoard."""

import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation.files import write_atomically
from foundation.progress import duration

if TYPE_CHECKING:
    from pretrain.training.distributions import Histogram

RECORDS = "metrics.jsonl"
SHOWN = {
    "generator_loss": "L_G {:.3f}",
    "sampler_loss": "L_S {:.4f}",
    "discriminator_loss": "L_D {:.4f}",
    "discriminator_entropy": "(entropy {:.4f})",
    "mlm_accuracy": "mlm {:.3f}",
    "accuracy_masked": "masked {:.3f}",
    "accuracy_all": "all {:.3f}",
    "epoch": "epoch {:.4g}",
    "learning_rate": "lr {:.2e}",
    "gradient_norm": "grad {:.3g}",
    "loss_scale": "scale {:g}",
    "skipped": "skipped {:g}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "samples_per_second": "{:,.1f} samples/s",
    "tflops": "{:.3g} TFLOP/s",
    "peak_share": "({:.0%} of peak)",
    "gpu_memory_gb": "GPU {:.1f} GB",
    "slowest_rank_seconds": "slowest rank {slowest_rank} {:.3g} s a step (median {median_rank_seconds:.3g})",
}


class RunLog:
    """Writes the records of a run that starts or resumes at `step`; discards those after it, of an interrupted run.

    On the first rank only.
    """

    def __init__(self, folder: Path, step: int, total_steps: int) -> None:
        self.total_steps = total_steps
        self._started = (time.monotonic(), step)
        self.path = folder / RECORDS
        kept = [line for line, record in _whole_lines(self.path) if record["step"] <= step]
        write_atomically(self.path, "".join(line + "\n" for line in kept).encode())
        self._file, self._unwritten = self.path.open("ab", buffering=0), b""
        self._open_board(step + 1)
        self._gap = 0
        """The last step that TensorBoard's file did not take."""

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One record of `kind` ("train" or "held_out"), to all three places; values may be nested."""
        self._write_record(kind, step, values)
        for name, value in flat(values):
            self._draw("scalar", f"{kind}/{name}", value, global_step=step)
        shown = [text.format(values[name], **values) for name, text in SHOWN.items() if values.get(name)]
        left = "held out"
        if kind == "train":
            started, first = self._started
            seconds = (time.monotonic() - started) / max(1, step - first) * (self.total_steps - step)
            left = f"{duration(seconds)} left"
        self.say(f"step {step}/{self.total_steps}  {'  '.join(shown)}  {left}")

    def write_histograms(self, kind: str, step: int, histograms: "Mapping[str, Histogram]") -> None:
        """To TensorBoard alone, under the names of what they are of."""
        for name, (bins, counts) in histograms.items():
            middles, found = bins.middles(), counts.nonzero().flatten()
            self._draw(
                "histogram_raw",
                f"{kind}/{name}",
                min=bins.low + found[0].item() * bins.width,
                max=bins.low + (found[-1].item() + 1) * bins.width,
                num=counts.sum().item(),
                sum=(counts * middles).sum().item(),
                sum_squares=(counts * middles**2).sum().item(),
                bucket_limits=(middles + bins.width / 2).tolist(),
                bucket_counts=counts.tolist(),
                global_step=step,
            )

    def write_example(self, step: int, text: str) -> None:
        """A decoded sequence, as a record of kind "example" and to TensorBoard."""
        self._write_record("example", step, {"text": text})
        lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
        as_it_stands = "\n".join(("```", *lines, "```"))  # no Markdown
        self._draw("text", "train/example", as_it_stands, global_step=step)

    def _write_record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        self._unwritten += (json.dumps({"kind": kind, "step": step, **values}) + "\n").encode()
        self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            self.say(f"WARNING: {self.path}: {error.strerror}; training goes on, and its records wait for room")

    def _draw(self, what: str, *values: Any, global_step: int, **named: Any) -> None:
        """Calls TensorBoard's `add_...`. Where the disk does not take it the curves have a gap, and the run goes on."""
        if self._unwritten or self._gap == global_step:
            return
        try:
            if self._gap:
                self._open_board(global_step)
            getattr(self._board, f"add_{what}")(*values, global_step=global_step, **named)
            self._gap = 0
        except OSError:  # its thread has ended; the next step begins a new file
            self._gap = global_step

    def _open_board(self, step: int) -> None:
        """Curves from `step` on are discarded: an interrupted run's."""
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self.path.with_name("tensorboard")), purge_step=step)

    def say(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:  # what launched the run has ended: the run shall stop as it should, unheard
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def close(self) -> None:
        """Flushes the curves; the interpreter's own shutdown, which would, is skipped among several ranks."""
        self._write_waiting()
        self._file.close()
        with suppress(OSError):
            self._board.close()


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested values, each under its path: `max_probability/p_G/9`."""
    for name, value in values.items():
        if isinstance(value, list):
            value = {str(place): part for place, part in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def read_records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind of a run folder, in order."""
    return [record for _, record in _whole_lines(folder / RECORDS) if record["kind"] == kind]


def _whole_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of the file, none if it is not there, each with its record; a killed run may have torn the last one."""
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            yield line, json.loads(line)
