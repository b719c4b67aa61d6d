"""Speed of the training batches that one process reads, against copying the same bytes from memory, in one run.

    python bench/loader.py [--data data/wikibooks] [--batch_size 256 --micro_batch_size 32]

Counts positions, padding included, as a training step does; without a folder of shards it makes random ones.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
from pydantic import Field

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.command_line import run_command
from data_prep.config import StrictConfig
from data_prep.tokens import SPECIAL_TOKENS
from pretrain.data import BatchPlan, TrainingBatches
from pretrain.shards import open_shards


class LoaderOptions(StrictConfig):
    """The command line of the benchmark."""

    data: Path = Path("data/wikibooks")
    """shard folder"""
    batch_size: int = Field(256, ge=1)
    """sequences a step"""
    micro_batch_size: int = Field(32, ge=1)
    """sequences a micro-batch"""
    steps: int = Field(30, ge=1)
    """steps counted, after one that is not"""


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
    reading = tokens / median_seconds(batches.step, options.steps)
    copying = tokens / median_seconds(lambda step: [part.clone() for part in parts], options.steps)
    print(f"{folder}: {len(shards):,} sequences of {shards.manifest.seq_length}; {size / 1e6:.1f} MB of tensors a step")
    print(f"  one process reads {reading / 1e6:8.1f} million tokens/s")
    print(f"  copying the bytes {copying / 1e6:8.1f} million tokens/s, {copying / reading:.1f} times as fast")


def median_seconds(step: Callable[[int], object], steps: int) -> float:
    seconds = []
    for number in range(steps + 1):
        started = time.perf_counter()
        step(number)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def random_shards(folder: Path) -> Path:
    """Shards of length 512 of made-up words, about two million tokens."""
    random = np.random.default_rng(0)
    words = [f"w{number}" for number in range(1000)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]))
    documents = [" ".join(random.choice(words, 4000)) for _ in range(500)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    paths = {"input": (folder / "text.txt",), "output": folder / "shards", "vocab": str(folder / "vocab.txt")}
    build_shards(BuildOptions(**paths, sentences="line", workers=1))
    return folder / "shards"


if __name__ == "__main__":
    sys.exit(run_command(main, LoaderOptions, __doc__))
