"""Seconds that work takes, on a GPU too."""

import statistics
import time
from collections.abc import Callable

import torch


def seconds_of(work: Callable[[], object]) -> float:
    """With all that it leaves a GPU to do, and nothing that was left before."""
    wait_for_gpu()
    started = time.perf_counter()
    work()
    wait_for_gpu()
    return time.perf_counter() - started


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """The median, after one that is not counted."""
    return statistics.median([seconds_of(work) for _ in range(1 + repeats)][1:])


def wait_for_gpu() -> None:
    """Until it has done all that it was asked for, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
