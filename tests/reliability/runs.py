"""Whole runs for the fault tests, started as a user would, with their output recorded line by line with times."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pretrain.engine.checkpoint import newest_valid
from tests.conftest import free_port
from tests.pretrain.whole_runs import Launch, losses, run_arguments, wait_for_step

STEPS, EVERY = 120, 20
SCHEDULE = (f"optim.steps={STEPS}", f"checkpoint_every={EVERY}", "evaluate_every=60", "keep_checkpoints=9")


class Heard:
    """A process with its output lines and their times."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def wait_for(self, said: str, since: float = 0.0, within: float = 240) -> float:
        """Waits for this text; returns the seconds since `since`."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            alive = self._thread.is_alive()
            if found := next((moment for moment, line in [*self.lines] if moment >= since and said in line), None):
                return found - since
            assert alive, f"it ended without {said!r}:\n{self.output}"
            time.sleep(0.02)
        raise AssertionError(f"it did not say {said!r}:\n{self.output}")

    def ended(self, code: int, within: float = 300) -> str:
        """Waits for the process and its descendants to end with this code; returns all their output."""
        self._thread.join(within)
        assert not self._thread.is_alive(), f"it still runs:\n{self.output}"
        assert self.process.wait() == code, self.output
        return self.output


def alone(launch: Launch, shards: Path, folder: Path, *options: str | Path, also: tuple[str, ...] = ()) -> Heard:
    """Starts one process; `also` are overrides."""
    return Heard(launch(0, *run_arguments(shards, folder, *SCHEDULE, *also), *options))


def on_two_ranks(launch: Launch, shards: Path, folder: Path, *options: str | Path, also: tuple[str, ...] = ()) -> Heard:
    """Starts two ranks under `deepspeed`."""
    return Heard(launch(2, *run_arguments(shards, folder, *SCHEDULE, *also), *options))


def supervised(launch: Launch, shards: Path, folder: Path, *options: str | Path, also: tuple[str, ...] = ()) -> Heard:
    """Starts two ranks under the supervisor, which restarts them once."""
    deepspeed = Path(sys.executable).with_name("deepspeed")
    command = (deepspeed, "--num_gpus=2", f"--master_port={free_port()}")
    arguments = (*run_arguments(shards, folder, *SCHEDULE, *also), *options)
    return Heard(launch(0, "pretrain/supervise.py", "--max_restarts", "1", "--", *command, *arguments))


def under_way(
    start: Callable[..., Heard], launch: Launch, shards: Path, folder: Path, *options: str
) -> tuple[Heard, float]:
    """A started run that has done 30 steps, and the moment after."""
    run = start(launch, shards, folder, *options)
    wait_for_step(folder, 30)
    return run, time.monotonic()


def as_killed_after(step: int, whole: Path, folder: Path) -> Path:
    """A copy of a run's folder as if it had been killed after its checkpoint of this step."""
    shutil.copytree(whole, folder)
    for checkpoint in (folder / "checkpoints").iterdir():
        if checkpoint.name > f"step-{step:08d}":
            shutil.rmtree(checkpoint)
    return folder


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}"


def assert_nothing_was_lost(folder: Path, whole: Path) -> None:
    """Asserts that every loss and the final weights equal an undisturbed run's, bit for bit."""
    assert losses(folder) == losses(whole)
    ends = [newest_valid(run / "checkpoints") for run in (folder, whole)]
    weights = {(end.folder / "weights.safetensors").read_bytes() for end in ends if end and end.step == STEPS}
    assert len(weights) == 1


def tell(**seconds: float) -> None:
    """Prints seconds for the table of docs/evidence/faults.md; `pytest -rP` shows them."""
    print("seconds:", ", ".join(f"{what} {value:.1f}" for what, value in seconds.items()))
