"""Training throughput, relative to the machine's measured matrix-product speed, and progress through the data."""

import time
from typing import Any

import torch

from foundation.progress import DAY
from pretrain.config import RunConfig
from pretrain.data.shards import Shards
from pretrain.engine.engine import Engine
from pretrain.model import ops
from pretrain.training.estimates import flops_per_token

LARGEST = 8192
"""Rows of the largest product tried; no GPU is faster with larger ones."""
LONG_ENOUGH = 0.04
"""No larger product is tried after one that took this many seconds; five such products delay a start by 0.2 s."""
REPEATS = 3


def matrix_peak(engine: Engine) -> float:
    """Measures the FLOP/s of square matrix products in the run's precision, summed over all ranks. Collective.

    The products use the same `ops.linear` as the model.
    """
    size, seconds = 256, 0.0
    while seconds < LONG_ENOUGH and size < LARGEST:
        size *= 2
        seconds = _seconds_of_product(size, engine)
    fastest = min([seconds, *(_seconds_of_product(size, engine) for _ in range(REPEATS - 1))])
    own = torch.tensor(2 * size**3 / fastest, dtype=torch.float64, device=engine.device)
    return engine.sum_over_ranks(own).item()


def _seconds_of_product(size: int, engine: Engine) -> float:
    random = torch.Generator(engine.device).manual_seed(0)  # its own generator: the run's randomness is untouched
    left = torch.rand(size, size, generator=random, device=engine.device).to(engine.dtype)
    _wait_for(left)
    started = time.perf_counter()
    _wait_for(ops.linear(left, left))
    return time.perf_counter() - started


def _wait_for(tensor: torch.Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)


class Throughput:
    """Computes the log's metrics of speed and of the work done so far."""

    def __init__(self, run: RunConfig, shards: Shards, step: int, peak: float) -> None:
        """`step` is where the run starts or resumes; `peak` is from `matrix_peak`, in FLOP/s over all ranks."""
        manifest = shards.manifest
        self.flops_per_token = flops_per_token(run.model, run.objective, manifest.vocab_size, manifest.seq_length)
        self._tokens_per_step = run.batch_size * shards.mean_length
        self._batch_size, self._step, self._peak = run.batch_size, step, peak
        self._mixture = shards.mixture
        self.fewest_days = (run.optim.steps - step) * self._tokens_per_step * self.flops_per_token / peak / DAY
        """Lower bound on the time for the remaining steps: all operations as fast as square matrix products."""

    def end(self, step: int, tokens: float, tokens_per_second: float) -> dict[str, Any]:
        """Ends the interval at `step`; returns its speed and the totals since the run's first step.

        FLOPs count word pieces only, not padding.
        """
        steps, self._step = step - self._step, step
        flops = tokens_per_second * self.flops_per_token
        epochs = [step * self._batch_size * share / size for _, size, share in self._mixture]
        return {
            "samples_per_second": steps * self._batch_size * tokens_per_second / tokens,
            "tflops": flops / 1e12,
            "peak_share": flops / self._peak,
            "tokens_so_far": round(step * self._tokens_per_step),
            "flops_so_far": step * self._tokens_per_step * self.flops_per_token,
            "epoch": max(epochs),  # of the mixed folders, the one read most often
            **({"epoch_of_folder": epochs} if len(epochs) > 1 else {}),
        }
