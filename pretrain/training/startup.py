"""Where the time of a start goes: from the beginning of each rank's process to its first step."""

import time

import psutil
import torch

from pretrain.engine.engine import Engine


class Startup:
    """The phases of a start: each begins where the one before ends, the first with the process."""

    def __init__(self) -> None:
        self._began = psutil.Process().create_time()
        self._ended = 0.0
        self._seconds: dict[str, float] = {}
        self.done("imports and plan")

    def done(self, phase: str) -> None:
        """Ends a phase."""
        now = time.time() - self._began
        self._seconds[phase] = now - self._ended
        self._ended = now

    def of_ranks(self, engine: Engine) -> dict[str, list[float]]:
        """Seconds of every phase on every rank. Collective."""
        world = engine.world
        seconds = torch.zeros(world.world_size, len(self._seconds), dtype=torch.float64, device=engine.device)
        seconds[world.rank] = torch.tensor(list(self._seconds.values()), dtype=torch.float64)
        return dict(zip(self._seconds, engine.sum_over_ranks(seconds).T.tolist(), strict=True))


def describe_start(seconds: dict[str, list[float]]) -> str:
    """One line: the slowest rank's start, phase by phase."""
    totals = [sum(phases) for phases in zip(*seconds.values(), strict=True)]
    slowest = totals.index(max(totals))
    phases = ", ".join(f"{phase} {of_ranks[slowest]:.1f}" for phase, of_ranks in seconds.items())
    return f"started in {totals[slowest]:.1f} s: {phases}"
