"""Times work on a CPU or a GPU."""

import statistics
import time
from collections.abc import Callable

import torch


def seconds_of(work: Callable[[], object]) -> float:
    """Returns the seconds that `work` takes, on the GPU too; earlier GPU work is not counted."""
    wait_for_gpu()
    started = time.perf_counter()
    work()
    wait_for_gpu()
    return time.perf_counter() - started


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Returns the median seconds of `repeats` calls, after one that is not counted."""
    return statistics.median([seconds_of(work) for _ in range(1 + repeats)][1:])


def wait_for_gpu() -> None:
    """Waits until the GPU, if there is one, has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
