"""Training speed on shards behind a URL against the same shards on this disk, in the same order.

    python bench/remote.py --remote https://HOST/shards --local data/wikibooks [--turns 3]

Each turn trains the preset `tiny`, the fastest model here, by the real command: once on the local folder, once on the
remote one with an empty cache. The reports before the first window of shards is there do not count.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from foundation.command_line import run_command
from foundation.config import ConfigError, StrictConfig
from foundation.files import ROOT

REPORT_EVERY = 20  # steps
SKIPPED = 3  # reports: start-up and the first window


class RemoteOptions(StrictConfig):
    """The command line of the benchmark."""

    remote: str
    """URL of a shard folder"""
    local: Path
    """the same shards on this machine"""
    turns: int = Field(3, ge=1)
    """runs on each, alternating"""
    steps: int = Field(400, ge=(SKIPPED + 2) * REPORT_EVERY)
    """optimizer steps per run"""
    window: int = Field(16, ge=1)
    """shards per window"""


class Trained(NamedTuple):
    """Reports of a run."""

    samples_per_second: list[float]
    """Without the first `SKIPPED`."""
    losses: list[float]


def main(options: RemoteOptions) -> None:
    found: dict[str, list[Trained]] = {"local": [], "remote": []}
    for _ in range(options.turns):
        for name, data in (("local", str(options.local)), ("remote", options.remote)):
            found[name].append(trained := train(data, options))
            print(f"{name:8}{statistics.median(trained.samples_per_second):8.1f} sequences/s", flush=True)
            if trained.losses != found["local"][0].losses:
                raise ConfigError(f"{name}: {data} gives other losses than the first run; name the same shards")
    local, remote = (
        statistics.median(speed for trained in runs for speed in trained.samples_per_second) for runs in found.values()
    )
    print(f"remote steps take {100 * (local / remote - 1):+.1f}%; all losses are equal")


def train(data: str, options: RemoteOptions) -> Trained:
    """Trains on a folder, with a cache of its own.

    Raises:
        ConfigError: the run fails.
    """
    settings = (f"optim.steps={options.steps}", "optim.warmup_steps=10", f"log_every={REPORT_EVERY}")
    order = ("order=windows", f"window={options.window}", "evaluate_every=100000", "checkpoint_every=100000")
    with tempfile.TemporaryDirectory() as folder:
        command = ("pretrain/run.py", "--preset", "tiny", "--data", data, "--output", f"{folder}/run")
        done = subprocess.run(
            [sys.executable, *command, "--set", *settings, *order],
            cwd=ROOT,
            env=os.environ | {"XDG_CACHE_HOME": f"{folder}/cache"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ConfigError(f"run.py on {data} failed: {done.stderr.strip().splitlines()[-1]}")
        lines = (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
    reports = [report for line in lines if (report := json.loads(line))["kind"] == "train"]
    return Trained(
        [report["samples_per_second"] for report in reports[SKIPPED:]],
        [report["discriminator_loss"] for report in reports],
    )


if __name__ == "__main__":
    sys.exit(run_command(main, RemoteOptions, __doc__))
