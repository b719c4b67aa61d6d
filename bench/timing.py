"""Seconds that work takes, on a GPU too."""

import time
from collections.abc import Callable

import torch


def seconds_of(work: Callable[[], object]) -> float:
    """With all that it leaves a GPU to do, and nothing that was left before."""
    _wait()
    started = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - started


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
