"""Training throughput, relative to the machine's measured matrix-product speed, and progress through the data."""

from typing import Any

from pretrain.config import RunConfig
from pretrain.data.shards import Shards
from pretrain.training.estimates import flops_per_token


class Throughput:
    """Computes the log's metrics of speed and of the work done so far."""

    def __init__(self, run: RunConfig, shards: Shards, step: int, peak: float) -> None:
        """`step` is where the run starts or resumes; `peak` is the speed of products in FLOP/s over all ranks."""
        manifest = shards.manifest
        self.flops_per_token = flops_per_token(run.model, run.objective, manifest.vocab_size, manifest.seq_length)
        self._tokens_per_step = run.batch_size * shards.mean_length
        self._batch_size, self._step, self._peak = run.batch_size, step, peak
        self._mixture = shards.mixture

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
