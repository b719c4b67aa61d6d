"""Reads the sequences and masks of a shard folder as arrays, and checks them and their files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.manifest import Manifest, ShardEntry
from data_prep.masking import bytes_per_copy, mask_size
from data_prep.shards import IndexedFile
from data_prep.tokens import TOKENIZER_NAME, WordPiece
from foundation.config import ConfigError
from foundation.files import file_sha256

_BATCH = 4096  # sequences per batch


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
    width = bytes_per_copy(manifest.seq_length)
    bitmaps = masks.data.reshape(len(masks), manifest.mask_copies, width)
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
    """Opens the ids and the masks of a shard, memory-mapped; checks all that the index files suffice for.

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
    """Checks sequences and their masks; returns the first sequence with each problem, normally none."""
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


def tokenizer_problems(folder: Path, manifest: Manifest) -> list[str]:
    """Returns the differences between a folder's tokenizer and the one that its manifest names; normally none."""
    problems = []
    tokenizer = WordPiece.load(folder / TOKENIZER_NAME)
    ours = (tokenizer.sha256(), tokenizer.vocab_size, tokenizer.special)
    if ours != (manifest.tokenizer_sha256, manifest.vocab_size, manifest.special_tokens):
        problems.append(f"{TOKENIZER_NAME}: not the tokenizer named by the manifest, or its special ids differ")
    for name, expected in manifest.tokenizer_files.items():
        path = folder / TOKENIZER_NAME / name
        if not path.is_file() or file_sha256(path) != expected:
            problems.append(f"{TOKENIZER_NAME}/{name}: missing, or changed since it was written")
    return problems


def file_problems(folder: Path, shard: ShardEntry, *, checksums: bool = True) -> list[str]:
    """Returns a line per missing or changed file of a shard; compares sizes and, if `checksums`, sha256."""
    found = (
        file_problem(folder / (shard.name + suffix), size, digest if checksums else None)
        for suffix, (size, digest) in shard.written.items()
    )
    return list(filter(None, found))


def file_problem(path: Path, size: int, digest: str | None) -> str | None:
    """Compares a file with its expected size and, if given, sha256; returns the difference, or None."""
    try:
        found = path.stat().st_size
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    if found != size:
        return f"{path.name}: {found} bytes, expected {size}"
    return None if not digest or file_sha256(path) == digest else f"{path.name}: changed since it was written (sha256)"
