"""Throughput of reading training batches in one process, against copying their bytes.

    python bench/loader.py [--data data/wikibooks] [--batch_size 256 --micro_batch_size 32]

Tokens include padding, as in a training step. Without a folder of shards, random shards are made. What a training step
takes: bench/step.py. How long it waits for its batches: bench/engine.py --data.
"""

import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
from pydantic import Field

from bench.timing import median_seconds
from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.tokens import SPECIAL_TOKENS
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import StrictConfig
from pretrain.data.batches import BatchPlan, TrainingBatches
from pretrain.data.shards import open_shards


class LoaderOptions(StrictConfig):
    """The command line of the benchmark."""

    data: Path = Path("data/wikibooks")
    """shard folder"""
    batch_size: int = Field(default=256, ge=1)
    """sequences per step"""
    micro_batch_size: int = Field(default=32, ge=1)
    """sequences per micro-batch"""
    steps: int = Field(default=30, ge=1)
    """steps timed, after one that is not counted"""


def main(options: LoaderOptions) -> None:
    torch.set_num_threads(1)
    if options.data.is_dir():
        report(options.data, options)
        return
    with tempfile.TemporaryDirectory() as name:
        report(random_shards(Path(name)), options)


def report(folder: Path, options: LoaderOptions) -> None:
    shards = open_shards(folder)
    plan = BatchPlan(options.batch_size, options.micro_batch_size, world_size=1, rank=0)
    batches = TrainingBatches(shards, plan, seed=0)
    tokens = options.batch_size * shards.manifest.seq_length
    parts = [part for batch in batches.step(0) for part in batch if isinstance(part, torch.Tensor)]
    size = sum(part.nbytes for part in parts)
    steps = map(batches.step, count())
    reading = tokens / median_seconds(lambda: next(steps), options.steps)
    copying = tokens / median_seconds(lambda: [part.clone() for part in parts], options.steps)
    print(f"{folder}: {len(shards):,} sequences of {shards.manifest.seq_length}, {size / 1e6:.1f} MB per step")
    print(f"  one process reads {reading / 1e6:8.1f} million tokens/s")
    print(f"  copying the bytes {copying / 1e6:8.1f} million tokens/s, {copying / reading:.1f} times as fast")


def random_shards(folder: Path) -> Path:
    """Builds shards of random words at length 512, about two million tokens; returns their folder."""
    random = np.random.default_rng(0)
    words = [f"w{number}" for number in range(1000)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]))
    documents = [" ".join(random.choice(words, 4000)) for _ in range(500)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    paths: dict[str, Any] = {
        "input": (folder / "text.txt",),
        "output": folder / "shards",
        "vocab": str(folder / "vocab.txt"),
    }
    build_shards(BuildOptions(**paths, sentences="line", workers=1))
    return folder / "shards"


if __name__ == "__main__":
    sys.exit(run_command(main, LoaderOptions, __doc__))
