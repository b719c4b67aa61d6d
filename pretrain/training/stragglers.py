"""Finds the rank that the others wait for, from the time each rank spends on work that waits for no other rank."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import TypeVar

import torch

from pretrain.engine.engine import Engine

Item = TypeVar("Item")


def of_ranks(engine: Engine, *numbers: float) -> list[list[float]]:
    """Returns these numbers from every rank, by rank. Collective."""
    table = torch.zeros(engine.world.world_size, len(numbers), dtype=torch.float64, device=engine.device)
    table[engine.world.rank] = torch.tensor(numbers, dtype=torch.float64)
    return engine.sum_over_ranks(table).tolist()


class OwnTime:
    """Measures a rank's own time since the last reading: waiting for its data, and its forwards.

    Backwards, updates and whole steps include waiting for other ranks, so they take equally long on all. Under ZeRO-3 a
    forward also waits, for weights.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._steps, self._seconds = 0, 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def reading(self, source: Iterable[Item]) -> Iterator[Item]:
        """Yields the items of `source`, one per step, and adds the time spent waiting for each."""
        items, started = iter(source), time.perf_counter()
        for item in items:
            self._seconds += time.perf_counter() - started
            self._steps += 1
            yield item
            started = time.perf_counter()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Measures the device time of the `with` block; on a GPU without waiting for it."""
        if self._engine.device.type != "cuda":
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started
            return
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._events.append((start, end))

    def end(self) -> dict[str, float]:
        """Returns the slowest rank, its own seconds per step and the median rank's; starts again. Collective."""
        self._seconds += sum(start.elapsed_time(end) for start, end in self._events) / 1e3
        seconds = [own for (own,) in of_ranks(self._engine, self._seconds / self._steps)]
        self._steps, self._seconds, self._events = 0, 0.0, []
        return {
            "slowest_rank": seconds.index(max(seconds)),
            "slowest_rank_seconds": max(seconds),
            "median_rank_seconds": median(seconds),
        }
