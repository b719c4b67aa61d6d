"""Runs a build: distributes the planned shards to workers. A worker writes whole shards, each with its record.

Resuming a build, or repeating a complete one, runs the same code with less to do: the text of every shard and its files
are compared with its record, and only missing or damaged shards are built.
"""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from data_prep.duplicates import Pairs, copies_of, find_duplicates, hash_shard, keys_path
from data_prep.manifest import WORK_NAME, BuildConfig
from data_prep.output import SIDES, ShardRecord, load_record, save_record
from data_prep.pipeline import build_shard, copies_digest
from data_prep.planning import Shard, WorkerTask
from data_prep.reading import Reader, hashed, text_digest
from data_prep.shards import file_problems
from data_prep.unpacking import can_seek, make_seek_index
from data_prep.workers import Pool
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.progress import Progress

Place = tuple[int, int]
"""Where a shard's documents lie in the corpus: the index of the first, and their count."""
Work = list[tuple[Shard, Place | None]]
"""Shards of a task and, if the build drops duplicates, their places."""


def make_shards(output: Path, config: BuildConfig, tasks: Sequence[WorkerTask], pool: Pool) -> None:
    """Builds every shard that is missing or damaged according to its record, once the text of all others is compared.

    Raises:
        ConfigError: the input cannot be read, or differs from the text that a shard was built from.
        OSError: writing to the disk fails.
    """
    for task in tasks:
        part = task[0].ranges[0]
        if (part.start == 0 and part.end is not None and len(task) == 1) and can_seek(part.source):
            make_seek_index(part.source, output / WORK_NAME)
    copies, places = _find_copies(output, config, tasks, pool) if config.dedup != "none" else (None, {})
    with Progress(sum(shard.size for task in tasks for shard in task), "shards") as progress:
        placed = ([(shard, places.get(shard.number)) for shard in task] for task in tasks)
        unfinished: list[Work] = []
        for work, left in pool.run(_unfinished, placed, copies, config, output):
            progress.advance(sum(shard.size for shard, place in work if (shard, place) not in left), is_old=True)
            unfinished.append(left)
        for work, _ in pool.run(_make, filter(None, unfinished), copies, config, output):
            progress.advance(sum(shard.size for shard, _ in work))


def _unfinished(work: Work, found: Pairs | None, config: BuildConfig, output: Path) -> Work:
    """Returns, on a worker, those shards of a task that are missing or damaged."""
    with Reader(config.reading, output / WORK_NAME) as reader:
        return [(shard, place) for shard, place in work if not _is_finished(shard, place, found, reader, output)]


def _is_finished(shard: Shard, place: Place | None, found: Pairs | None, reader: Reader, output: Path) -> bool:
    """True if a shard has a sound record.

    Raises:
        ConfigError: it has, but was built from other text.
    """
    record = load_record(output, shard.name, ShardRecord)
    if record is None or not _is_sound(record, output):
        return False
    digest = text_digest()
    deque(hashed(reader.shard(shard), digest), 0)
    copies = copies_of(found, *place) if found and place else {}
    if (record.text, record.duplicates) != (digest.hexdigest(), copies_digest(copies)):
        raise ConfigError(
            f"input: the text of {_names(shard)} has changed since {output} was built from it; restore the "
            "old text, or choose another --output"
        )
    return True


def _make(work: Work, found: Pairs | None, config: BuildConfig, output: Path) -> None:
    """Builds shards of a task, on a worker."""
    with Reader(config.reading, output / WORK_NAME) as reader:
        for shard, place in work:
            copies = copies_of(found, *place) if found and place else {}
            record = build_shard(shard.name, shard.ranges[0].key, reader.shard(shard), copies, config, output)
            keys = keys_path(output / WORK_NAME, shard.number)
            if place and not keys.read_bytes().endswith(record.text.encode()):
                keys.unlink()
                raise ConfigError(
                    f"input: the text of {_names(shard)} changed during the build, which reads it twice to find "
                    "duplicates; leave it unchanged and run the same command again"
                )
            save_record(output, shard.name, record)


def _names(shard: Shard) -> str:
    return ", ".join(sorted({str(part.source.path) for part in shard.ranges})[:3])


def _is_sound(record: ShardRecord, output: Path) -> bool:
    """True if all files of a shard match its record; else prints what differs."""
    entries = ((output / folder, getattr(record, side)) for side, folder in SIDES.items())
    problems = [problem for folder, entry in entries if entry for problem in file_problems(folder, entry)]
    if problems:
        print(f"{output}: {'; '.join(problems)}; rebuilding the shard")
    return not problems


def _find_copies(
    output: Path, config: BuildConfig, tasks: Sequence[WorkerTask], pool: Pool
) -> tuple[Pairs, dict[int, Place]]:
    """Hashes all documents in a first pass over the input, and finds the duplicates among them.

    Returns the duplicates, and the `Place` of each shard by the shard's number.
    """
    counts: dict[int, int] = {}
    with Progress(sum(shard.size for task in tasks for shard in task), "hashes") as progress:
        for task, documents in pool.run(_hash, tasks, config, output / WORK_NAME):
            progress.advance(sum(shard.size for shard in task))
            counts |= documents
    ordered = [counts[number] for number in sorted(counts)]
    copies = find_duplicates(output / WORK_NAME, ordered, pool, config.dedup)
    firsts = accumulate(ordered, initial=0)
    return copies, {number: (first, counts[number]) for number, first in zip(sorted(counts), firsts, strict=False)}


def _hash(task: WorkerTask, config: BuildConfig, folder: Path) -> dict[int, int]:
    """Hashes the documents of a task's shards, on a worker; returns their count by the shard's number."""
    with Reader(config.reading, folder) as reader:
        return {shard.number: hash_shard(shard, reader, config.reading, folder, config.dedup) for shard in task}
