"""Runs a build: sends the chunks through the pool and merges their parts into a shard once it has all of them.

Resuming a build, or repeating a complete one, runs the same code with less to do: the text of every chunk, every part
and every shard is compared with the log, and only missing or damaged ones are rebuilt.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from data_prep.chunks import read_chunks
from data_prep.duplicates import Duplicates, hash_chunk
from data_prep.inspection import file_problems
from data_prep.manifest import BuildConfig, ShardEntry
from data_prep.parts import WORK_NAME, Merge, ShardCutter, merge_parts, part_path
from data_prep.pipeline import ChunkTask, do_chunk
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
    budget = int(config.chunk_mb * 1e6)
    duplicates = _find_duplicates(output, config, sources, pool) if config.dedup != "none" else None
    merging = _Merging(output, log, config)

    def tasks() -> Iterator[ChunkTask | Merge]:
        for chunk in read_chunks(sources, budget, config.reading):
            yield from merging.take()
            if duplicates is not None:
                chunk = replace(chunk, duplicates=duplicates.of(chunk.number))
            yield ChunkTask(chunk, log.chunk(chunk.number), merging.sides_of(chunk.number))

    with Progress(sum(source.size for source in sources), "shards") as progress:
        for task, done in pool.run(_perform, tasks(), config, output, strict):
            if isinstance(task, Merge):
                merging.finish(task, done)
                made += 1
                continue
            is_old = done == task.record
            made += not is_old
            merging.add(done, is_old)
            progress.advance(task.chunk.disk_bytes, is_old)
    if merging.next_chunk != len(log):
        raise ConfigError(
            f"input: {output} was built from {counted(len(log), 'chunk')} of text, but the input now has "
            f"{merging.next_chunk}; restore the old text, or choose another --output"
        )
    for merge, entry in pool.run(_perform, merging.end(), config, output, strict):
        merging.finish(merge, entry)
        made += 1
    return made


def _perform(task: ChunkTask | Merge, config: BuildConfig, output: Path, strict: bool) -> ChunkRecord | ShardEntry:
    """Builds a chunk or merges a shard, on a worker; returns its entry for the log."""
    if isinstance(task, Merge):
        return merge_parts(task, config, output)
    return do_chunk(task, config, output, strict)


class _Merging:
    """Tracks which chunks are finished, and decides which shards can be merged.

    Attributes:
        next_chunk: number of the first chunk that is not finished.
    """

    def __init__(self, output: Path, log: RecordLog, config: BuildConfig) -> None:
        self._output, self._log = output, log
        self._cutters = {side: ShardCutter(side, config.shard_mb * 1e6) for side in SIDES}
        self._waiting: deque[Merge] = deque()
        self._finished: dict[int, ChunkRecord] = {}
        self.next_chunk = 0

    def sides_of(self, chunk: int) -> frozenset[str]:
        """The sides (training, held out) whose part of the chunk is already in a complete shard."""
        shards = self._log.shards.items()
        return frozenset(
            side for side, entries in shards if any(e.first_chunk <= chunk <= e.last_chunk for e in entries.values())
        )

    def add(self, record: ChunkRecord, is_old: bool) -> None:
        """Takes a finished chunk, logging it unless it `is_old`; passes chunks on in order, up to the first gap."""
        if not is_old:
            self._log.add(CHUNK, record.number, record)
        self._finished[record.number] = record
        while self.next_chunk in self._finished:
            follower = self._finished.pop(self.next_chunk)
            for side, cutter in self._cutters.items():
                self._waiting += cutter.add(self.next_chunk, follower.part(side))
            self.next_chunk += 1

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
        chunks = read_chunks(sources, int(config.chunk_mb * 1e6), config.reading)
        for chunk, documents in pool.run(hash_chunk, chunks, config.reading, folder, config.dedup):
            progress.advance(chunk.disk_bytes)
            counts[chunk.number] = documents
    return Duplicates(folder, [count for _, count in sorted(counts.items())], pool, config.dedup)
