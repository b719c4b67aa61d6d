"""Runs a build: sends the units of input through the pool and merges the parts of their chunks into shards.

A worker reads a unit and builds its chunks. While a unit has more than one, its finished chunks are recorded in a log
of the unit's own, from which another worker goes on if this one is killed.

Resuming a build, or repeating a complete one, runs the same code with less to do: the text of every chunk, every part
and every shard is compared with the log, and only missing or damaged ones are rebuilt.
"""

import sys
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from math import ceil
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from data_prep.chunks import Unit, chunk_number, divide, place_of
from data_prep.duplicates import Duplicates, hash_chunk
from data_prep.inspection import file_problems
from data_prep.manifest import BuildConfig, ShardEntry
from data_prep.parts import WORK_NAME, Merge, ShardCutter, merge_parts, part_path
from data_prep.pipeline import ChunkTask, changed_between_passes, do_chunk
from data_prep.records import CHUNK, SIDES, ChunkRecord, RecordLog, folder_of
from data_prep.sources import Source
from data_prep.workers import Pool
from foundation.config import ConfigError, counted
from foundation.progress import Progress


def make_shards(
    output: Path, log: RecordLog, config: BuildConfig, sources: Sequence[Source], pool: Pool, *, strict: bool
) -> int:
    """Builds every chunk and shard that is missing or damaged according to the log; returns their number.

    Raises:
        ConfigError: the input cannot be read, or differs from the text that the log's chunks were built from.
        OSError: writing to the disk fails.
    """
    made = _drop_damaged(output, log, pool)
    duplicates = _find_duplicates(output, config, sources, pool) if config.dedup != "none" else None
    merging = _Merging(output, log, config)
    recorded = defaultdict(list)
    for number in log.numbers():
        recorded[place_of(number)[0]].append(number)

    def tasks() -> Iterator[UnitTask | Merge]:
        for unit in divide(sources, config.chunk_bytes, config.reading):
            yield from merging.take()
            records = tuple(filter(None, map(log.chunk, recorded.pop(unit.number, ()))))
            merged = merging.sides_merged(record.number for record in records)
            copies = None
            if duplicates is not None:
                numbers = takewhile(duplicates.__contains__, (chunk_number(unit.number, place) for place in count()))
                copies = {number: duplicates.of(number) for number in numbers}
            yield UnitTask(unit, records, merged, copies)

    with Progress(sum(source.size for source in sources), "shards") as progress:
        for task, done in pool.run(_perform, tasks(), config, output, strict):
            if isinstance(task, Merge):
                merging.finish(task, done)
                made += 1
                continue
            known = {record.number: record for record in task.records}
            new = [record for record in done if record != known.get(record.number)]
            made += len(new)
            merging.add(task.unit.number, done, new)
            progress.advance(task.unit.size, not new)
    if merging.chunks != len(log):
        raise ConfigError(
            f"input: {output} was built from {counted(len(log), 'chunk')} of text, but the input now has "
            f"{merging.chunks}; restore the old text, or choose another --output"
        )
    for merge, entry in pool.run(_perform, merging.end(), config, output, strict):
        merging.finish(merge, entry)
        made += 1
    return made


def most_units(sources: Sequence[Source], budget: int) -> int:
    """Returns a number of units that `divide` cannot exceed, from the sizes of files, without opening any."""
    if any(source.on_hub for source in sources):
        return sys.maxsize  # unknown until they are listed
    sizes = [source.size / max(1, budget) for source in sources]
    return min(sum(map(ceil, sizes)), 2 * ceil(sum(sizes)) - 1)  # two neighbours together exceed the budget


class UnitTask(NamedTuple):
    """A unit to build or, as far as an earlier run has built it, to check against that run's records."""

    unit: Unit
    records: tuple[ChunkRecord, ...]
    """The earlier run's records of the unit's chunks."""
    merged: dict[int, frozenset[str]]
    """For each of these chunks, the sides whose part is already in a complete shard."""
    duplicates: dict[int, Mapping[int, str]] | None
    """For each chunk, the reasons to drop copies, by their index in it."""


def _perform(task: UnitTask | Merge, config: BuildConfig, output: Path, strict: bool) -> list[ChunkRecord] | ShardEntry:
    """Builds a unit's chunks or merges a shard, on a worker; returns the entries for the log."""
    if isinstance(task, Merge):
        return merge_parts(task, config, output)
    done: list[ChunkRecord] = []
    with ExitStack() as stack:
        open_log = partial(RecordLog, output / WORK_NAME, name=_log_name(task.unit.number))
        log = stack.enter_context(open_log()) if (output / WORK_NAME / _log_name(task.unit.number)).exists() else None
        known = {record.number: record for record in (*(log.chunks() if log else ()), *task.records)}
        for place, chunk in enumerate(task.unit.chunks(config.chunk_bytes, config.reading)):
            if task.duplicates is not None:
                chunk = replace(chunk, duplicates=task.duplicates.get(chunk.number, {}))
            if place == 1 and log is None:
                log = stack.enter_context(open_log())
                log.add(CHUNK, done[0].number, done[0])
            merged = task.merged.get(chunk.number, frozenset())
            done.append(do_chunk(ChunkTask(chunk, known.get(chunk.number), merged), config, output, strict))
            if log is not None and done[-1] != known.get(chunk.number):
                log.add(CHUNK, chunk.number, done[-1])
    if task.duplicates is not None and len(done) < len(task.duplicates):
        raise changed_between_passes(task.unit.stretches)
    return done


def _log_name(unit: int) -> str:
    return f"unit-{unit:05d}.log"


class _Merging:
    """Tracks which units are finished, and decides which shards can be merged.

    Attributes:
        chunks: number of chunks in the finished units that only finished ones precede.
    """

    def __init__(self, output: Path, log: RecordLog, config: BuildConfig) -> None:
        self._output, self._log = output, log
        self._cutters = {side: ShardCutter(side, config.shard_mb * 1e6) for side in SIDES}
        self._waiting: deque[Merge] = deque()
        self._finished: dict[int, int] = {}
        self._next_unit = self.chunks = 0
        self._merged = {
            side: sorted((place_of(entry.first_chunk), place_of(entry.last_chunk)) for entry in entries.values())
            for side, entries in log.shards.items()
        }

    def sides_merged(self, chunks: Iterable[int]) -> dict[int, frozenset[str]]:
        """Returns, for each chunk, the sides whose part of it an earlier run has merged into a shard."""
        merged: dict[int, frozenset[str]] = {}
        for chunk in chunks:
            place = place_of(chunk)
            before = {side: bisect(ranges, place, key=itemgetter(0)) for side, ranges in self._merged.items()}
            sides = (side for side, count in before.items() if count and place <= self._merged[side][count - 1][1])
            merged[chunk] = frozenset(sides)
        return merged

    def add(self, unit: int, records: Sequence[ChunkRecord], new: Sequence[ChunkRecord]) -> None:
        """Takes a finished unit, logging its `new` chunks; passes chunks on in order, up to the first gap."""
        for record in new:
            self._log.add(CHUNK, record.number, record)
        (self._output / WORK_NAME / _log_name(unit)).unlink(missing_ok=True)
        self._finished[unit] = len(records)
        while self._next_unit in self._finished:
            count = self._finished.pop(self._next_unit)
            for number in (chunk_number(self._next_unit, place) for place in range(count)):
                logged = self._log.chunk(number)
                assert logged is not None
                for side, cutter in self._cutters.items():
                    self._waiting += cutter.add(number, logged.part(side))
            self._next_unit, self.chunks = self._next_unit + 1, self.chunks + count

    def take(self) -> Iterator[Merge]:
        """Yields the shards that have all their parts and have not been merged yet."""
        while self._waiting:
            merge = self._waiting.popleft()
            entry = self._log.shards[merge.side].get(merge.number)
            if entry is None or (entry.first_chunk, entry.last_chunk) != (merge.first_chunk, merge.last_chunk):
                yield merge
            else:
                self._remove_parts(merge)

    def end(self) -> Iterator[Merge]:
        """Yields the remaining shards after the last chunk, including those that are not full."""
        for cutter in self._cutters.values():
            self._waiting += cutter.end()
        return self.take()

    def finish(self, merge: Merge, entry: ShardEntry) -> None:
        """Records a merged shard and removes its parts."""
        self._log.add(merge.side, merge.number, entry)
        self._remove_parts(merge)

    def _remove_parts(self, merge: Merge) -> None:
        for chunk, _ in merge.parts:
            part_path(self._output, merge.side, chunk).unlink(missing_ok=True)


def _drop_damaged(output: Path, log: RecordLog, pool: Pool) -> int:
    """Drops missing and damaged shards from the log, printing each; returns their number."""
    dropped = 0
    size = sum(entry.size for entries in log.shards.values() for entry in entries.values())
    with Progress(size, "check of shards") as progress:
        for side, entries in log.shards.items():
            folder = folder_of(output, side)
            shards = [entry for _, entry in sorted(entries.items())]
            for shard, problems in pool.run(partial(file_problems, folder), shards):
                progress.advance(shard.size)
                if problems:
                    del entries[int(shard.name.removeprefix("shard-"))]
                    print(f"{folder}: {'; '.join(problems)}; rebuilding the shard")
                    dropped += 1
    return dropped


def _find_duplicates(output: Path, config: BuildConfig, sources: Sequence[Source], pool: Pool) -> Duplicates:
    """Hashes all documents in a first pass over the input; returns those that are duplicates."""
    folder = output / WORK_NAME
    counts: dict[int, int] = {}
    with Progress(sum(source.size for source in sources), "hashes") as progress:
        units = divide(sources, config.chunk_bytes, config.reading)
        for unit, documents in pool.run(_hash_unit, units, config, folder):
            progress.advance(unit.size)
            counts |= documents
    by_number = {number: counts[number] for number in sorted(counts, key=place_of)}
    return Duplicates(folder, by_number, pool, config.dedup)


def _hash_unit(unit: Unit, config: BuildConfig, folder: Path) -> dict[int, int]:
    """Hashes the documents of a unit, on a worker; returns the number of documents in each chunk."""
    chunks = unit.chunks(config.chunk_bytes, config.reading)
    return {chunk.number: hash_chunk(chunk, config.reading, folder, config.dedup) for chunk in chunks}
