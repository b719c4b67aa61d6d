"""A folder of shards read to the last byte, shard by shard on any number of workers."""

from itertools import accumulate, count
from pathlib import Path
from typing import NamedTuple

from data_prep.inspection import (
    Figures,
    checksum_problems,
    megatron_problems,
    problems_of,
    read_rows,
    tokenizer_problems,
)
from data_prep.manifest import Books, Manifest, ShardEntry
from data_prep.mask_statistics import MaskStatistics
from data_prep.records import LOG_NAME, RecordLog
from data_prep.tokens import TOKENIZER_NAME, WordPiece
from data_prep.workers import Pool
from foundation.progress import Progress


class Verified(NamedTuple):
    """What was found wrong, and the counts over all sequences."""

    problems: list[str]
    figures: Figures
    masks: MaskStatistics


class _Part(NamedTuple):
    """A shard to verify."""

    number: int
    shard: ShardEntry
    first: int
    """Sequences in the shards before it."""


def verify(folder: Path, manifest: Manifest, pool: Pool) -> Verified:
    """Everything that can be found wrong with a folder: checksums, tokenizer, books, every sequence and mask."""
    problems = [f"{folder}/{problem}" for problem in tokenizer_problems(folder, manifest)]
    if (folder / LOG_NAME).is_file():
        with RecordLog(folder, "rb") as log:
            if log.damaged or sum((record.books for record in log.chunks()), Books()) != manifest.books:
                problems.append(f"{log.path}: damaged, or not of this build")
    plain = manifest.model_copy(update={"shards": ()})  # what a worker is sent with each shard
    parts: dict[int, Verified] = {}
    with Progress(sum(map(_size, manifest.shards)), "verify") as progress:
        firsts = accumulate((shard.sequences for shard in manifest.shards), initial=0)
        tasks = map(_Part, count(), manifest.shards, firsts)
        for number, part in pool.run(_verify_shard, tasks, folder, plain, manifest.totals.sequences):
            parts[number] = part
            progress.advance(_size(manifest.shards[number]))
    figures, masks = Figures(), MaskStatistics()
    for _, part in sorted(parts.items()):
        problems += part.problems
        figures.join(part.figures)
        masks.join(part.masks)
    if not problems and (figures.sequences, figures.tokens) != (manifest.totals.sequences, manifest.totals.tokens):
        problems.append(f"{folder}: manifest.json counts other sequences or tokens than the shards hold")
    if not manifest.books.balance:
        problems.append(f"{folder}: the books in manifest.json do not balance")
    return Verified(problems, figures, masks)


def _size(shard: ShardEntry) -> int:
    return sum(shard.sizes.values())


def _verify_shard(part: _Part, folder: Path, manifest: Manifest, expected: int) -> tuple[int, Verified]:
    shard, tokenizer = part.shard, WordPiece.load(folder / TOKENIZER_NAME)
    figures, masks = Figures(), MaskStatistics(expected, seen=part.first)
    found = checksum_problems(folder, shard)
    if not found:
        for rows in read_rows(folder, shard, manifest):
            found += problems_of(rows, manifest)
            if not found:
                figures.add(rows, manifest)
                masks.add(rows, manifest, tokenizer)
        found += megatron_problems(folder, shard)
    return part.number, Verified([f"{folder / shard.name}: {problem}" for problem in found], figures, masks)
