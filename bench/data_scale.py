"""Time and memory of the parts of data preparation and loading that see all of a corpus, at the size of ten terabytes.

    python bench/data_scale.py --data data/wikibooks [--names 1000000 --shards 10000]

Records, names and shards have a process each. The records are links to that of DATA's first shard; the input files are
links to one small file; the shards are sparse files of DATA's sizes, with as many sequences in all as ten terabytes
have at length 128. Nothing else is simulated: the builder's and the loader's own code runs on them.
"""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from pydantic import Field

from data_prep.manifest import RECORDS_NAME, Books, load_manifest, save_manifest, sum_shards
from data_prep.planning import plan_shards
from data_prep.records import PLAN, Plan, ShardRecord, load_record, save_record
from data_prep.sources import find_sources
from foundation.command_line import run_command
from foundation.config import StrictConfig
from foundation.markdown_table import markdown_table
from pretrain.data.shards import Shards

SEQUENCES = 20 * 10**9  # 10 TB of text in sequences of 128, at 4.4 bytes per word piece
BATCH, BATCHES = 4096, 100
Result = TypeVar("Result")
LINKS = 30_000  # hard links to one file; file systems have a limit near 65,000


class ScaleOptions(StrictConfig):
    """The command line of the benchmark."""

    data: Path = Path("data/wikibooks")
    """shard folder made by build_shards.py"""
    names: int = Field(1_000_000, ge=1)
    """input files"""
    shards: int = Field(10_000, ge=1)
    """shards in the manifest"""


class Measured(NamedTuple):
    """One step."""

    step: str
    seconds: float
    megabytes: float
    """Peak memory of the process so far, without what it took to start."""


def main(options: ScaleOptions) -> None:
    with tempfile.TemporaryDirectory() as name:
        parts = (
            (records, options.shards, "records"),
            (names, options.names, "names"),
            (shards, options.shards, "shards"),
        )
        rows = []
        for part, count, unit in parts:
            with get_context("spawn").Pool(1) as pool:
                found = pool.apply(part, (options.data.resolve(), Path(name), count))
            rows += [[f"{count:,} {unit}: {step}", f"{seconds:.1f}", f"{size:.0f}"] for step, seconds, size in found]
    print("\n".join(markdown_table(["step", "seconds", "MB of memory"], rows)))


class Watch:
    """Measures steps one after the other."""

    def __init__(self) -> None:
        self.found: list[Measured] = []
        self._before = self._peak()

    @staticmethod
    def _peak() -> float:
        found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
        return int(found[1]) / 1e3 if found else 0.0

    def step(self, name: str, work: Callable[[], Result]) -> Result:
        started = time.perf_counter()
        result = work()
        self.found.append(Measured(name, time.perf_counter() - started, self._peak() - self._before))
        return result


def records(data: Path, work: Path, count: int) -> list[Measured]:
    """Rank 0's reading of the records of all shards, when a build ends."""
    plan, record = load_record(data, PLAN, Plan), load_record(data, "shard-00000", ShardRecord)
    assert plan is not None and record is not None
    watch, folder = Watch(), work / "records"
    save_record(folder, "shard-00000", record)
    for number in range(1, count):
        os.link(folder / RECORDS_NAME / "shard-00000.json", folder / RECORDS_NAME / f"shard-{number:05d}.json")
    found = (load_record(folder, f"shard-{number:05d}", ShardRecord) for number in range(count))
    watch.step("ledgers summed", lambda: sum((one.books for one in found if one), Books()))
    return watch.found


def names(data: Path, work: Path, count: int) -> list[Measured]:
    """Rank 0's list of input files, and the plan of the shards."""
    folder = work / "names"
    folder.mkdir()
    for number in range(count):
        place, base = folder / f"{number // LINKS:04d}", number % LINKS
        if not base:
            place.mkdir()
            (place / "000000.txt").write_text("A text.\n")
        else:
            os.link(place / "000000.txt", place / f"{base:06d}.txt")
    plan = load_record(data, PLAN, Plan)
    assert plan is not None
    watch = Watch()
    sources = watch.step("found", lambda: find_sources((folder,)))
    inputs = {source.key: source.size for source in sources}
    watch.step("in the plan, as JSON", lambda: plan.model_copy(update={"inputs": inputs}).model_dump_json())
    watch.step("planned as shards", lambda: plan_shards(sources, 0))
    return watch.found


def shards(data: Path, work: Path, count: int) -> list[Measured]:
    """A training process that opens the shards and samples from them, at the beginning and as a resume does."""
    folder = work / "shards"
    folder.mkdir()
    shutil.copytree(data / "tokenizer", folder / "tokenizer")
    manifest = load_manifest(data)
    first, sequences = manifest.shards[0], SEQUENCES // count
    sizes = {suffix: size * sequences // first.sequences for suffix, (size, _) in first.written.items()}
    sizes |= {".idx": 8 * sequences, ".mask.idx": 8 * sequences}
    entries = []
    for number in range(count):
        name = f"shard-{number:05d}"
        for suffix, size in sizes.items():
            with (folder / (name + suffix)).open("wb") as file:
                file.truncate(size)
        written = {suffix: (sizes[suffix], sha) for suffix, (_, sha) in first.written.items()}
        tokens = first.tokens * sequences // first.sequences
        entries.append(
            first.model_copy(update={"name": name, "sequences": sequences, "tokens": tokens, "written": written})
        )
    totals = sum_shards(entries, manifest.seq_length, len(manifest.config.ngram))
    save_manifest(manifest.model_copy(update={"shards": tuple(entries), "totals": totals}), folder)
    watch = Watch()
    for order, window in (("full permutation", 0), ("windows of 16", 16)):
        opened = watch.step(f"opened, {order}", partial(Shards, folder, window=window))
        for place, start in (("first", 0), ("after 90% of an epoch", len(opened) * 9 // 10)):
            batches = [np.arange(start + number * BATCH, start + (number + 1) * BATCH) for number in range(BATCHES)]
            name = f"{order}, {BATCHES} batches of {BATCH:,} drawn, {place}"
            watch.step(name, partial(draw, opened, batches))
    return watch.found


def draw(shards: Shards, batches: Sequence[np.ndarray]) -> None:
    for sample_B in batches:
        shards.shuffled(sample_B, seed=0)


if __name__ == "__main__":
    sys.exit(run_command(main, ScaleOptions, __doc__))
