"""What is said of training between two log lines, gathered on the device from the forwards that train.

The sums are of every step since the last line; the distributions, which cost more, of the last step alone.
"""

import time
from pathlib import Path
from typing import Any

import torch

from data_prep.tokens import open_tokenizer
from pretrain.data.batches import Batch
from pretrain.engine.engine import Engine
from pretrain.method.electra import ElectraOutput
from pretrain.method.objectives.mlm import MaskedLMOutput
from pretrain.training.distributions import Distributions, describe, histograms
from pretrain.training.example import Example
from pretrain.training.metrics import MetricSums, summary
from pretrain.training.run_log import RunLog


class Reported:
    """All that is reported of forwards, over all ranks."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sums, self.distributions = MetricSums(engine.device), Distributions(engine.device)

    def add(self, batch: Batch, output: ElectraOutput | MaskedLMOutput, watched: bool) -> None:
        """One micro-batch; `watched` ones were asked for their entropies."""
        self.sums.add(batch, output)
        if watched:
            self.distributions.add(batch, output)

    def values(self) -> dict[str, Any]:
        """The summary of everything added, by name. Collective."""
        sums, distributions = (
            self.engine.sum_over_ranks(part.vector.clone()) for part in (self.sums, self.distributions)
        )
        return summary(sums) | describe(distributions)


class Interval(Reported):
    """What happened since the last log line, and the time it took."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        """`folder` is the run's, whose tokenizer decodes; read now, for the folder may be gone when it is needed."""
        super().__init__(engine)
        self.vocabulary = open_tokenizer(str(folder / "tokenizer")).tokens if engine.world.is_first else []
        self.watching = self.histograms_due = False
        self.example: Example | None = None
        self.started = time.monotonic()

    def expect(self, report: bool, histograms: bool) -> None:
        """Says what the next step ends with."""
        self.watching, self.histograms_due = report or histograms, histograms
        self.example = None
        if self.watching:
            self.distributions.reset()

    def see(self, batch: Batch, output: ElectraOutput | MaskedLMOutput) -> None:
        """One micro-batch of the step."""
        self.add(batch, output, self.watching)
        if self.histograms_due and self.example is None:
            self.example = Example.of(batch, output)

    def draw(self, log: RunLog, step: int) -> None:
        """Writes the step's histograms and its first sequence in words. Collective."""
        counts = self.engine.sum_over_ranks(self.distributions.vector.clone())
        if self.engine.world.is_first and self.example is not None:
            log.write_histograms("train", step, histograms(counts))
            log.write_example(step, self.example.text(self.vocabulary))

    def end(self) -> dict[str, Any]:
        """The values of the interval; the next one starts. Collective."""
        values = self.values()
        values["tokens_per_second"] = values["tokens"] / (time.monotonic() - self.started)
        self.sums.reset()
        self.started = time.monotonic()
        return values | gpu_memory(self.engine)


def gpu_memory(engine: Engine) -> dict[str, float]:
    """The most that tensors have taken at once since the start, on the rank where it is most; without GPUs nothing.

    Collective.
    """
    if engine.device.type != "cuda":
        return {}
    peaks = torch.zeros(engine.world.world_size, dtype=torch.float64, device=engine.device)
    peaks[engine.world.rank] = torch.cuda.max_memory_allocated(engine.device)
    return {"gpu_memory_gb": engine.sum_over_ranks(peaks).max().item() / 1e9}
