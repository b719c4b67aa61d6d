"""Which rank the others wait for: the time each spends where it waits for none."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import TypeVar

import torch

from pretrain.engine.engine import Engine

Item = TypeVar("Item")


def of_ranks(engine: Engine, *numbers: float) -> list[list[float]]:
    """These numbers of every rank, by rank. Collective."""
    table = torch.zeros(engine.world.world_size, len(numbers), dtype=torch.float64, device=engine.device)
    table[engine.world.rank] = torch.tensor(numbers, dtype=torch.float64)
    return engine.sum_over_ranks(table).tolist()


class OwnTime:
    """Time of this rank from the last look at it on: waiting for its data, and its forwards.

    Backwards and updates wait for other ranks and end together on all; so would the steps. Under ZeRO-3 a forward
    waits too, for weights.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._steps, self._seconds = 0, 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def reading(self, source: Iterable[Item]) -> Iterator[Item]:
        """The items of `source`, one a step, the wait for each counted."""
        items, started = iter(source), time.perf_counter()
        for item in items:
            self._seconds += time.perf_counter() - started
            self._steps += 1
            yield item
            started = time.perf_counter()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Counts what the device does for the code of the block; on a GPU without waiting for it."""
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
        """The slowest rank, its own seconds a step and the median rank's; starts anew. Collective."""
        self._seconds += sum(start.elapsed_time(end) for start, end in self._events) / 1e3
        seconds = [own for (own,) in of_ranks(self._engine, self._seconds / self._steps)]
        self._steps, self._seconds, self._events = 0, 0.0, []
        return {
            "slowest_rank": seconds.index(max(seconds)),
            "slowest_rank_seconds": max(seconds),
            "median_rank_seconds": median(seconds),
        }
