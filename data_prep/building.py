"""The work of a build: chunks through the pool, their parts merged into shards as soon as a run of them is complete.

A build that is resumed, or run again when it is complete, is the same work with less to do: every chunk's text and
every part and shard is compared with what the log recorded, and what is missing or damaged is made again.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from data_prep.chunks import Chunk, read_chunks
from data_prep.duplicates import Duplicates, hash_chunk
from data_prep.formats import Reading
from data_prep.inspection import checksum_problems
from data_prep.manifest import BuildConfig, ShardEntry
from data_prep.merging import Merge, ShardCutter, merge_parts
from data_prep.pipeline import WORK_NAME, ChunkTask, do_chunk, part_path
from data_prep.records import SIDES, ChunkRecord, RecordLog, folder_of
from data_prep.sources import Source
from data_prep.workers import Pool
from foundation.config import ConfigError
from foundation.progress import Progress


class ShardCheck(NamedTuple):
    """A merged shard to compare with what was recorded of it."""

    side: str
    number: int
    entry: ShardEntry


def make_shards(
    output: Path, log: RecordLog, config: BuildConfig, sources: Sequence[Source], pool: Pool, *, strict: bool
) -> int:
    """Brings every chunk and shard about that the log does not hold whole; returns how many were made.

    Raises:
        ConfigError: the input cannot be read, or is not what the log's chunks were built from.
        OSError: the disk does not take what is written.
    """
    repaired = _drop_damaged(output, log, pool)
    reading = Reading(config.documents, config.text_column)
    duplicates = _find_duplicates(output, config, reading, sources, pool) if config.dedup == "exact" else None
    merging = _Merging(output, log, config)
    made = 0
    sizes: dict[int, int] = {}
    with Progress(sum(source.size for source in sources), "shards") as progress:

        def tasks() -> Iterator[ChunkTask | Merge]:
            for chunk in read_chunks(sources, int(config.chunk_mb * 1e6), reading):
                yield from merging.take()
                sizes[chunk.number] = chunk.disk_bytes
                if duplicates is not None:
                    chunk = replace(chunk, duplicates=duplicates.of(chunk.number))
                yield ChunkTask(chunk, log.chunk(chunk.number), merging.sides_of(chunk.number))

        for done in pool.run(_perform, tasks(), config, output, strict):
            if isinstance(done, ChunkRecord):
                is_old = done == log.chunk(done.number)
                made += not is_old
                merging.add(done, is_old)
                (progress.skip if is_old else progress.advance)(sizes.pop(done.number))
            else:
                made += 1
                merging.finish(*done)
    if merging.next_chunk != len(log):
        raise ConfigError(
            f"input: {output} was built from {len(log)} chunks of text, and there are {merging.next_chunk} now; put "
            "the old text back, or build into another --output"
        )
    for done in pool.run(_perform, merging.end(), config, output, strict):
        assert not isinstance(done, ChunkRecord)
        made += 1
        merging.finish(*done)
    return made + repaired


def _perform(
    task: ChunkTask | Merge, config: BuildConfig, output: Path, strict: bool
) -> ChunkRecord | tuple[Merge, ShardEntry]:
    """What a worker does."""
    if isinstance(task, Merge):
        return task, merge_parts(task, config, output)
    return do_chunk(task, config, output, strict)


class _Merging:
    """Follows the finished chunks in order, and says which shards can be merged.

    Attributes:
        next_chunk: number of the first chunk that has not been followed.
    """

    def __init__(self, output: Path, log: RecordLog, config: BuildConfig) -> None:
        self._output, self._log = output, log
        self._cutters = {side: ShardCutter(side, config.shard_mb * 1e6) for side in SIDES}
        self._waiting: list[Merge] = []
        self._finished: set[int] = set()
        self.next_chunk = 0
        self._ranges = {
            side: sorted((entry.first_chunk, entry.last_chunk) for entry in log.shards[side].values()) for side in SIDES
        }

    def sides_of(self, chunk: int) -> frozenset[str]:
        """Sides on which a whole shard holds the chunk's part; a side's ranges are sorted and do not overlap."""
        sides = []
        for side, ranges in self._ranges.items():
            place = bisect_right(ranges, chunk, key=lambda pair: pair[0])
            if place > 0 and chunk <= ranges[place - 1][1]:
                sides.append(side)
        return frozenset(sides)

    def add(self, record: ChunkRecord, is_old: bool) -> None:
        """Records a finished chunk."""
        if not is_old:
            self._log.add_chunk(record)
        self._finished.add(record.number)
        while self.next_chunk in self._finished:
            self._finished.remove(self.next_chunk)
            follower = self._log.chunk(self.next_chunk)
            assert follower is not None
            for side, cutter in self._cutters.items():
                self._waiting += cutter.add(self.next_chunk, follower.part(side))
            self.next_chunk += 1

    def take(self) -> Iterator[Merge]:
        """The shards that have all their parts, and are not there yet."""
        while self._waiting:
            merge = self._waiting.pop(0)
            entry = self._log.shards[merge.side].get(merge.number)
            if entry is None or (entry.first_chunk, entry.last_chunk) != (merge.first_chunk, merge.last_chunk):
                yield merge
            else:
                self._remove_parts(merge)

    def end(self) -> Iterator[Merge]:
        """The same, once no chunk is left: with the last shards, which are not full."""
        for cutter in self._cutters.values():
            self._waiting += cutter.end()
        yield from self.take()

    def finish(self, merge: Merge, entry: ShardEntry) -> None:
        """Records a merged shard; its parts go."""
        self._log.add_shard(merge.side, merge.number, entry)
        self._remove_parts(merge)

    def _remove_parts(self, merge: Merge) -> None:
        for chunk, _ in merge.parts:
            part_path(self._output, merge.side, chunk).unlink(missing_ok=True)


def _drop_damaged(output: Path, log: RecordLog, pool: Pool) -> int:
    """Strikes from the log the shards that are missing or damaged, and says so; returns how many."""
    checks = [ShardCheck(side, number, entry) for side in SIDES for number, entry in sorted(log.shards[side].items())]
    dropped = 0
    with Progress(sum(sum(check.entry.sizes.values()) for check in checks), "check of shards") as progress:
        for check, problems in pool.run(_check_shard, checks, output):
            progress.advance(sum(check.entry.sizes.values()))
            if problems:
                del log.shards[check.side][check.number]  # until it is merged again
                print(f"{folder_of(output, check.side)}: {'; '.join(problems)}; its text is built again")
                dropped += 1
    return dropped


def _check_shard(check: ShardCheck, output: Path) -> tuple[ShardCheck, list[str]]:
    return check, checksum_problems(folder_of(output, check.side), check.entry)


def _find_duplicates(
    output: Path, config: BuildConfig, reading: Reading, sources: Sequence[Source], pool: Pool
) -> Duplicates:
    """The first pass over the input, which only hashes."""
    folder = output / WORK_NAME
    sizes: dict[int, int] = {}
    with Progress(sum(source.size for source in sources), "hashes") as progress:

        def chunks() -> Iterator[Chunk]:
            for chunk in read_chunks(sources, int(config.chunk_mb * 1e6), reading):
                sizes[chunk.number] = chunk.disk_bytes
                yield chunk

        for number in pool.run(hash_chunk, chunks(), reading, folder):
            progress.advance(sizes[number])
    return Duplicates(folder, len(sizes))
