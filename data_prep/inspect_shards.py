"""Prints the statistics of a shard folder, checks it, and shows some of its sequences.

python data_prep/inspect_shards.py data/wikibooks --verify --show 3
"""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from data_prep.manifest import (
    HELD_OUT_NAME,
    MANIFEST_NAME,
    RECORDS_NAME,
    Books,
    Manifest,
    ShardEntry,
    load_manifest,
    warn_of_padding,
)
from data_prep.masking import bytes_per_copy, mask_size
from data_prep.output import ShardRecord, load_record
from data_prep.shards import IndexedFile, file_problems, tokenizer_problems
from data_prep.tokens import CONTINUATION, TOKENIZER_NAME, SubwordTokenizer
from data_prep.workers import Pool, start_pool
from electra_sampler.foundation.command_line import POSITIONAL, printable, run_script
from electra_sampler.foundation.config import ConfigError, StrictConfig, counted, few
from electra_sampler.foundation.machine import cores
from electra_sampler.foundation.progress import Progress

_SHOWN = 20  # problems listed
_BATCH = 4096  # sequences per batch


class InspectOptions(StrictConfig):
    """The command line of `inspect_shards.py`."""

    takes_any_name = True

    folder: Annotated[Path, POSITIONAL]
    """shard folder"""
    verify: bool = False
    """check every checksum, sequence and mask, also through megatron-core's reader"""
    show: int = Field(default=0, ge=0)
    """sequences to print, masked tokens marked"""
    workers: int = Field(default_factory=cores, ge=1, le=4096)
    """maximum number of processes for --verify (one per core)"""


def main(options: InspectOptions) -> int:
    """Prints the statistics of a shard folder and of its held-out part; returns 1 if a check fails, else 0."""
    with start_pool(options.workers if options.verify else 1) as pool:
        if pool is None:
            return 0
        held_out = options.folder / HELD_OUT_NAME
        folders = (options.folder, *([held_out] if (held_out / MANIFEST_NAME).is_file() else []))
        manifests = {folder: load_manifest(folder) for folder in folders}
        pool.start(max(len(manifest.shards) for manifest in manifests.values()))
        problems: list[str] = []
        for folder, manifest in manifests.items():
            _print_manifest(folder, manifest)
            found = [*tokenizer_problems(folder, manifest)]
            sizes = (file_problems(folder, shard, checksums=False) for shard in manifest.shards)
            found += verify(folder, manifest, pool) if options.verify else chain.from_iterable(sizes)
            if options.show and not found:
                _show(folder, manifest, options.show)
            problems += found
        for problem in few(problems, "problems", _SHOWN):
            print(f"inspect_shards: {printable(problem)}", file=sys.stderr)
        if options.verify:
            if find_spec("megatron") is None:
                print("\nmegatron-core is not installed: its reader did not check the shards")
            repair = "rerun build_shards.py with the same options, which repairs the folder"
            print(f"\n{counted(len(problems), 'problem')}: {repair}" if problems else "\nverified: no problem found")
        return 1 if problems else 0


def verify(folder: Path, manifest: Manifest, pool: Pool) -> list[str]:
    """Reads every byte of a folder's shards; returns all problems found."""
    problems = []
    if not manifest.books.balances:
        problems.append(f"{folder}: the counts of manifest.json do not balance: read is not train + held out + dropped")
    if (records := folder / RECORDS_NAME).is_dir():
        known = [load_record(folder, path.stem, ShardRecord) for path in records.glob("shard-*.json")]
        if None in known or sum((record.books for record in filter(None, known)), Books()) != manifest.books:
            problems.append(f"{records}: damaged, or from another build")
    plain = manifest.model_copy(update={"shards": ()})  # sent to a worker with each shard
    found: dict[str, list[str]] = {}
    with Progress(sum(shard.size for shard in manifest.shards), "verify") as progress:
        for shard, of_shard in pool.run(_verify_shard, manifest.shards, folder, plain):
            found[shard.name] = of_shard
            progress.advance(shard.size)
    return problems + [problem for shard in manifest.shards for problem in found[shard.name]]


def _verify_shard(shard: ShardEntry, folder: Path, manifest: Manifest) -> list[str]:
    """Returns all problems found in one shard."""
    problems = file_problems(folder, shard)
    if not problems:
        of_rows = (problems_of(rows, manifest) for rows in read_rows(folder, shard, manifest))
        problems = [*chain.from_iterable(of_rows), *megatron_problems(folder, shard)]
    return [f"{folder / shard.name}: {problem}" for problem in problems]


def megatron_problems(folder: Path, shard: ShardEntry) -> Iterator[str]:
    """Yields the files of a shard that megatron-core's reader, if installed, reads differently from this project."""
    if find_spec("megatron") is None:
        return
    with warnings.catch_warnings(action="ignore"):  # about GPU libraries that reading does not need
        from megatron.core.datasets.indexed_dataset import IndexedDataset

    for name in (shard.name, f"{shard.name}.mask"):
        ours, theirs = IndexedFile(folder / name), IndexedDataset(str(folder / name))
        if len(ours) != len(theirs) or not all(np.array_equal(ours[item], theirs[item]) for item in range(len(ours))):
            yield f"{name} is read differently by megatron-core"


@dataclass(frozen=True)
class Rows:
    """Consecutive sequences of a shard with their masks; `first` is the number of the first one.

    `ids` uint16 [S, seq_length], padded; `lengths` int32 [S]; `masked` bool [S, copies, bits of a bitmap].
    """

    first: int
    ids: np.ndarray
    lengths: np.ndarray
    masked: np.ndarray


def read_rows(folder: Path, shard: ShardEntry, manifest: Manifest, limit: int | None = None) -> Iterator[Rows]:
    """Yields batches of the shard's sequences, in order, at most `limit` in all.

    Raises:
        ConfigError: the files are damaged.
    """
    ids, masks = open_shard(folder, shard, manifest)
    bitmaps = masks.data.reshape(len(masks), manifest.mask_copies, bytes_per_copy(manifest.seq_length))
    starts = ids.offsets // ids.data.itemsize
    last = len(ids) if limit is None else min(limit, len(ids))
    for start in range(0, last, _BATCH):
        part = slice(start, min(start + _BATCH, last))
        lengths = ids.lengths[part]
        inside = np.arange(manifest.seq_length) < lengths[:, None]
        rows = np.full(inside.shape, manifest.special_tokens.pad, np.uint16)
        rows[inside] = ids.data[starts[start] : starts[start] + lengths.sum()]
        masked = np.unpackbits(bitmaps[part], axis=-1, bitorder="little").astype(np.bool_)
        yield Rows(start, rows, lengths, masked)


def open_shard(folder: Path, shard: ShardEntry, manifest: Manifest) -> tuple[IndexedFile, IndexedFile]:
    """Opens the ids and the masks of a shard, memory-mapped; checks what the index files alone can show.

    Raises:
        ConfigError: a file is missing, or contradicts the manifest.
    """
    path, row = folder / shard.name, manifest.mask_copies * bytes_per_copy(manifest.seq_length)
    ids, masks = IndexedFile(path), IndexedFile(folder / f"{shard.name}.mask")
    ids.require_sound()
    masks.require_sound()
    if masks.dtype != np.uint8 or len(masks) != len(ids) or (masks.lengths != row).any():
        raise ConfigError(f"{path}.mask: does not have one row of masks per sequence; build the shards again")
    tokens = ids.size // ids.dtype.itemsize
    if ids.dtype != np.uint16 or (len(ids), tokens) != (shard.sequences, shard.tokens):
        raise ConfigError(
            f"{path}: holds {len(ids)} sequences and {tokens} tokens, but manifest.json says {shard.sequences} "
            f"and {shard.tokens}; build the shards again"
        )
    if not 2 < ids.lengths.min() <= ids.lengths.max() <= manifest.seq_length:
        raise ConfigError(f"{path}: a sequence's length is out of bounds; build the shards again")
    return ids, masks


def problems_of(rows: Rows, manifest: Manifest) -> list[str]:
    """Checks sequences and their masks; returns a line per kind of problem, with the first sequence that has it."""
    special = manifest.special_tokens
    positions = np.arange(manifest.seq_length)
    inside = positions < rows.lengths[:, None]
    last = positions == rows.lengths[:, None] - 1
    separators = rows.ids == special.sep
    forbidden = np.isin(rows.ids, (special.pad, special.cls, special.sep, special.mask))
    beyond = rows.masked[:, :, manifest.seq_length :].any((1, 2))
    masked = rows.masked[:, :, : manifest.seq_length]
    checks = {
        "does not start with [CLS], or has a second one": (rows.ids[:, 0] != special.cls)
        | ((rows.ids == special.cls).sum(1) != 1),
        "does not end with [SEP]": ~(separators & last).any(1),
        "does not have one or two segments": ~np.isin(separators.sum(1), (1, 2)),
        "has [MASK] or [PAD] among its tokens": (inside & np.isin(rows.ids, (special.mask, special.pad))).any(1),
        "has an id beyond the vocabulary": (rows.ids >= manifest.vocab_size).any(1),
        "has a mask beyond its end": beyond | (masked & ~inside[:, None]).any((1, 2)),
        "has a special token masked": (masked & (inside & forbidden)[:, None]).any((1, 2)),
        "does not have ceil(0.15 n) masked positions": (masked.sum(-1) != mask_size(rows.lengths)[:, None]).any(1),
    }
    return [
        f"sequence {rows.first + int(np.argmax(wrong))} {problem}" for problem, wrong in checks.items() if wrong.any()
    ]


def _print_manifest(folder: Path, manifest: Manifest) -> None:
    totals, books = manifest.totals, manifest.books
    print(
        f"{printable(str(folder))}: {counted(totals.sequences, 'sequence')} in "
        f"{counted(len(manifest.shards), 'shard')}, {sum(shard.size for shard in manifest.shards) / 1e6:,.1f} MB"
    )
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
    for name, share in books.inputs.items():
        print(
            f"  input           {printable(name)}: {counted(share.documents, 'document')}, "
            f"{share.characters:,} characters, "
            f"{share.word_pieces:,} word pieces ({share.word_pieces / max(1, pieces):.1%})"
        )
    drawn = " ".join(f"{count / max(1, sum(totals.ngrams)):.4f}" for count in totals.ngrams)
    asked = " ".join(f"{chance:.4f}" for chance in manifest.config.ngram)
    print(
        f"  unknown words   {totals.unknown_share:.4%} of the word pieces",
        f"  padding         {totals.padding_share:.2%} of {totals.sequences:,} x {manifest.seq_length}",
        f"  n-grams         {drawn} drawn, {asked} requested",
        sep="\n",
    )
    warn_of_padding(folder, manifest)


def _show(folder: Path, manifest: Manifest, count: int) -> None:
    """Prints the first sequences with the tokens of their first mask [in brackets]."""
    names = SubwordTokenizer.load(folder / TOKENIZER_NAME).shown
    shard = manifest.shards[0]
    for rows in read_rows(folder, shard, manifest, count):
        for number, length in enumerate(rows.lengths):
            masked = zip(rows.ids[number, :length], rows.masked[number, 0], strict=False)
            tokens = (f"[{names[token]}]" if is_masked else names[token] for token, is_masked in masked)
            # pieces that continue a word are joined to it
            text = " ".join(tokens).replace(f" [{CONTINUATION}", "[").replace(f" {CONTINUATION}", "")
            print(f"\n{shard.name}, sequence {rows.first + number}, {counted(int(length), 'token')}\n{text}")


if __name__ == "__main__":
    run_script(main)
