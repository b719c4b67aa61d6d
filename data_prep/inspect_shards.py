"""Prints the statistics of a shard folder, checks it, and shows some of its sequences.

python data_prep/inspect_shards.py data/wikibooks --verify --show 3
"""

import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from data_prep.inspection import (
    MaskStatistics,
    Rows,
    file_problems,
    megatron_problems,
    problems_of,
    read_rows,
    sample_rows,
    tokenizer_problems,
)
from data_prep.manifest import HELD_OUT_NAME, MANIFEST_NAME, RECORDS_NAME, Books, Manifest, ShardEntry, load_manifest
from data_prep.records import ShardRecord, load_record
from data_prep.tokens import CONTINUATION, TOKENIZER_NAME, WordPiece
from data_prep.workers import Pool, start_pool
from foundation.command_line import POSITIONAL, printable, run_command
from foundation.config import StrictConfig, counted
from foundation.machine import cores
from foundation.progress import Progress

_SHOWN = 20  # problems listed, and inputs listed
_BLOCKS, _BLOCK = 64, 64  # blocks, and sequences per block, sampled without --verify
_MARK, _PLAIN = "\033[30;43m", "\033[0m"  # ANSI: black on yellow; end
_PARTS = 8  # equal parts of a sequence, for the masking rate by position


class InspectOptions(StrictConfig):
    """The command line of `inspect_shards.py`."""

    takes_any_name = True

    folder: Annotated[Path, POSITIONAL]
    """shard folder"""
    verify: bool = False
    """check every checksum, sequence and mask, also through megatron-core's reader"""
    show: int = Field(0, ge=0)
    """sequences to print, masked tokens marked"""
    workers: int = Field(default_factory=cores, ge=1, le=4096)
    """most processes used by --verify (one per core)"""


def main(options: InspectOptions) -> int:
    """Prints the statistics of a shard folder and of its held-out part; returns 1 if a check fails, else 0."""
    with start_pool(options.workers if options.verify else 1) as pool:
        return _inspect_all(options, pool) if pool else 0


def _inspect_all(options: InspectOptions, pool: Pool) -> int:
    held_out = options.folder / HELD_OUT_NAME
    folders = (options.folder, *([held_out] if (held_out / MANIFEST_NAME).is_file() else []))
    manifests = {folder: load_manifest(folder) for folder in folders}
    pool.limit(max(len(manifest.shards) for manifest in manifests.values()))
    problems: list[str] = []
    for folder, manifest in manifests.items():
        if folder == held_out:
            print()
        problems += _inspect(folder, manifest, options, pool)
    for problem in problems[:_SHOWN]:
        print(f"inspect_shards: {printable(problem)}", file=sys.stderr)
    if len(problems) > _SHOWN:
        print(f"inspect_shards: and {counted(len(problems) - _SHOWN, 'more problem')}", file=sys.stderr)
    if options.verify:
        if find_spec("megatron") is None:
            print("\nmegatron-core is not installed: the shards were not read by its reader too")
        repair = "rerun build_shards.py with its options, which repairs the folder"
        print(f"\n{counted(len(problems), 'problem')}: {repair}" if problems else "\nverified: no problem found")
    return 1 if problems else 0


def _inspect(folder: Path, manifest: Manifest, options: InspectOptions, pool: Pool) -> list[str]:
    _print_manifest(folder, manifest)
    tokenizer = WordPiece.load(folder / TOKENIZER_NAME)
    if options.verify:
        problems, statistics = verify(folder, manifest, pool)
    else:
        problems = [f"{folder}/{problem}" for problem in tokenizer_problems(folder, manifest)]
        found, statistics = _checked(sample_rows(folder, manifest, _BLOCKS, _BLOCK), manifest, tokenizer)
        problems += [f"{folder}: {problem}; --verify finds all of them" for problem in found[:1]]
    if not problems:
        _print_statistics(statistics, manifest)
        if options.show:
            _show(folder, manifest, tokenizer, options.show)
    return problems


def _checked(batches: Iterable[Rows], manifest: Manifest, tokenizer: WordPiece) -> tuple[list[str], MaskStatistics]:
    """Checks sequences and their masks; returns the problems found, and the statistics up to the first one."""
    problems: list[str] = []
    statistics = MaskStatistics(manifest.seq_length)
    for rows in batches:
        problems += problems_of(rows, manifest)
        if not problems and tokenizer.vocab_size == manifest.vocab_size:
            statistics.add(rows, manifest, tokenizer)
    return problems, statistics


def verify(folder: Path, manifest: Manifest, pool: Pool) -> tuple[list[str], MaskStatistics]:
    """Reads every byte of a folder; returns all problems found, and the mask statistics over all sequences."""
    problems = [f"{folder}/{problem}" for problem in tokenizer_problems(folder, manifest)]
    if (records := folder / RECORDS_NAME).is_dir():
        known = [load_record(folder, path.stem, ShardRecord) for path in records.glob("shard-*.json")]
        if None in known or sum((record.books for record in filter(None, known)), Books()) != manifest.books:
            problems.append(f"{records}: damaged, or from another build")
    plain = manifest.model_copy(update={"shards": ()})  # sent to a worker with each shard
    shards, totals = manifest.shards, manifest.totals
    done: dict[str, tuple[list[str], MaskStatistics]] = {}
    with Progress(sum(shard.size for shard in shards), "verify") as progress:
        for shard, found in pool.run(_verify_shard, shards, folder, plain):
            done[shard.name] = found
            progress.advance(shard.size)
    statistics = MaskStatistics(manifest.seq_length)
    for shard in shards:
        found, counted = done[shard.name]
        problems += found
        statistics.join(counted)
    if not problems and (statistics.sequences, statistics.tokens) != (totals.sequences, totals.tokens):
        problems.append(f"{folder}: the number of sequences or tokens in manifest.json differs from the shards")
    if not manifest.books.balances:
        problems.append(f"{folder}: the books in manifest.json do not balance")
    return problems, statistics


def _verify_shard(shard: ShardEntry, folder: Path, manifest: Manifest) -> tuple[list[str], MaskStatistics]:
    """Returns all problems found in one shard, and its mask statistics."""
    tokenizer = WordPiece.load(folder / TOKENIZER_NAME)
    statistics = MaskStatistics(manifest.seq_length)
    problems = file_problems(folder, shard)
    if not problems:
        problems, statistics = _checked(read_rows(folder, shard, manifest), manifest, tokenizer)
        problems += megatron_problems(folder, shard)
    return [f"{folder / shard.name}: {problem}" for problem in problems], statistics


def _print_manifest(folder: Path, manifest: Manifest) -> None:
    totals = manifest.totals
    size, name = sum(shard.size for shard in manifest.shards), printable(str(folder))
    shards = counted(len(manifest.shards), "shard")
    print(f"{name}: {counted(totals.sequences, 'sequence')} in {shards}, {size / 1e6:,.1f} MB")
    books = manifest.books
    ledgers = {"documents": books.documents, "characters": books.characters, "word pieces": books.word_pieces}
    for name, ledger in ledgers.items():
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in ledger.dropped.items() if count) or "none"
        print(
            f"  {name:<12} {ledger.read:>15,} read = {ledger.train:,} for training + "
            f"{ledger.held_out:,} held out + dropped: {printable(dropped)}"
        )
    print(
        f"  repaired        {counted(books.invalid_utf8, 'malformed UTF-8 sequence')}, "
        f"{counted(books.normalized_documents, 'document')} normalized to NFC, "
        f"{counted(books.cut_documents, 'overlong document')} and {counted(books.cut_lines, 'overlong line')} cut"
    )
    pieces = sum(share.word_pieces for share in books.inputs.values())
    for name, share in list(books.inputs.items())[:_SHOWN]:
        print(
            f"  input           {printable(name)}: {counted(share.documents, 'document')}, "
            f"{share.characters:,} characters, "
            f"{share.word_pieces:,} word pieces ({share.word_pieces / max(1, pieces):.1%})"
        )
    if len(books.inputs) > _SHOWN:
        print(f"  and {len(books.inputs) - _SHOWN:,} more inputs")
    drawn = " ".join(f"{count / max(1, sum(totals.ngrams)):.4f}" for count in totals.ngrams)
    asked = " ".join(f"{chance:.4f}" for chance in manifest.config.ngram)
    print(f"  unknown words   {totals.unknown_share:.4%} of the word pieces")
    print(f"  padding         {totals.padding_share:.2%} of {totals.sequences:,} x {manifest.seq_length}")
    print(f"  n-grams         {drawn} drawn, {asked} requested")


def _print_statistics(statistics: MaskStatistics, manifest: Manifest) -> None:
    """Prints where the masks fall: by position and word piece, as multiples of the expected rate."""
    sequences, copies, masked = statistics.sequences, manifest.mask_copies, statistics.position.sum()
    positions = [np.array_split(counts, _PARTS) for counts in (statistics.position, statistics.position_chance)]
    by_position = [f"{there.sum() / max(1e-9, chance.sum()):.3f}" for there, chance in zip(*positions, strict=True)]
    pieces = zip(statistics.piece, statistics.piece_chance, strict=True)
    by_piece = [f"{count / chance:.3f}" if chance else "none" for count, chance in pieces]
    cut, most = statistics.words_cut, statistics.most_cut
    per_mask, share = cut / max(1, sequences * copies), cut / max(1, statistics.words_masked)
    print(f"  in {counted(sequences, 'sequence')} with {counted(copies, 'mask')} each:")
    print(f"  two segments    {statistics.pairs / max(1, sequences):.1%}")
    print(f"  masked          {masked / max(1, statistics.tokens * copies):.4%} of the tokens")
    for name, runs in (("masked runs", statistics.runs), ("  simulated", statistics.simulated_runs)):
        shares = [f"{length}: {count / max(1, runs.sum()):.1%}" for length, count in enumerate(runs[1:9], 1)]
        print(f"  {name:<15} {' '.join(shares)}")
    print(f"  by position     {' '.join(by_position)} times the expected rate, by eighths of the length")
    print(f"  by piece        {' '.join(by_piece)} times the expected rate, by first, second, ... piece of a word")
    print(f"  words cut       {per_mask:.2f} per mask, {share:.1%} of the masked words, at most {most} in one mask")


def _show(folder: Path, manifest: Manifest, tokenizer: WordPiece, count: int) -> None:
    """Prints the first sequences with the tokens of their first mask [in brackets], or colored on a terminal."""
    for rows in read_rows(folder, manifest.shards[0], manifest, limit=count):
        for number in range(min(count - rows.first, len(rows.lengths))):
            length = int(rows.lengths[number])
            tokens = [tokenizer.tokens[token] for token in rows.ids[number, :length]]
            print(f"\n{manifest.shards[0].name}, sequence {rows.first + number}, {counted(length, 'token')}")
            print(_marked(tokens, rows.masked[number, 0]))


def _marked(tokens: list[str], masked: np.ndarray) -> str:
    """Returns the tokens as text, `##` pieces joined to their word, the masked tokens marked."""
    colored = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    opening, closing = (_MARK, _PLAIN) if colored else ("[", "]")
    parts: list[str] = []
    for token, is_masked in zip(tokens, masked, strict=False):
        joined = parts and token.startswith(CONTINUATION)
        text = token.removeprefix(CONTINUATION) if joined else token
        marked = f"{opening}{text}{closing}" if is_masked else text
        parts.append(marked if joined else f" {marked}")
    return "".join(parts).strip()


if __name__ == "__main__":
    sys.exit(run_command(main, InspectOptions, __doc__))
