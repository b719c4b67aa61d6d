"""Checks and figures of a shard folder, shard by shard: what `inspect_shards` prints."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np

from data_prep.manifest import Manifest, ShardEntry
from data_prep.masking import bytes_per_copy, mask_size
from data_prep.shards import IndexedFile
from data_prep.tokens import TOKENIZER_NAME, WordPiece
from foundation.config import ConfigError
from foundation.files import file_sha256

_BATCH = 4096  # sequences looked at together


@dataclass(frozen=True)
class Rows:
    """Some sequences of a shard, from number `first` on.

    `ids` uint16 [S, seq_length], padded; `lengths` int32 [S]; `masked` bool [S, copies, bits of a bitmap].
    """

    first: int
    ids: np.ndarray
    lengths: np.ndarray
    masked: np.ndarray


def read_rows(
    folder: Path, shard: ShardEntry, manifest: Manifest, first: int = 0, limit: int | None = None
) -> Iterator[Rows]:
    """The shard's sequences in order from number `first` on, at most `limit` of them, in batches.

    Raises:
        ConfigError: the files are damaged.
    """
    ids, masks = open_shard(folder, shard, manifest)
    width = bytes_per_copy(manifest.seq_length)
    bitmaps = masks.data.reshape(len(masks), manifest.mask_copies, width)
    starts = ids.offsets // ids.data.itemsize
    last = len(ids) if limit is None else min(first + limit, len(ids))
    for start in range(first, last, _BATCH):
        part = slice(start, min(start + _BATCH, last))
        lengths = ids.lengths[part]
        inside = np.arange(manifest.seq_length) < lengths[:, None]
        rows = np.full(inside.shape, manifest.special_tokens.pad, np.uint16)
        rows[inside] = ids.data[starts[start] : starts[start] + lengths.sum()]
        masked = np.unpackbits(bitmaps[part], axis=-1, bitorder="little").astype(np.bool_)
        yield Rows(start, rows, lengths, masked)


def sample_rows(folder: Path, manifest: Manifest, blocks: int, block: int) -> Iterator[Rows]:
    """About `blocks` x `block` sequences in blocks spread evenly over all shards; all there are where they are fewer.

    Raises:
        ConfigError: the files are damaged.
    """
    ends = np.cumsum([shard.sequences for shard in manifest.shards])
    if ends[-1] <= blocks * block:
        for shard in manifest.shards:
            yield from read_rows(folder, shard, manifest)
        return
    for number in np.linspace(0, ends[-1], blocks, endpoint=False).astype(int):
        shard = manifest.shards[int(np.searchsorted(ends, number, side="right"))]
        first = int(number - ends[manifest.shards.index(shard)] + shard.sequences)
        yield from read_rows(folder, shard, manifest, min(first, max(0, shard.sequences - block)), block)


def open_shard(folder: Path, shard: ShardEntry, manifest: Manifest) -> tuple[IndexedFile, IndexedFile]:
    """The ids and the masks of a shard, memory-mapped; all that the indices alone can tell is checked.

    Raises:
        ConfigError: a file is missing, or is not what the manifest says.
    """
    path = folder / shard.name
    ids, masks = IndexedFile(path), IndexedFile(folder / f"{shard.name}.mask")
    ids.require_sound()
    masks.require_sound()
    mask_bytes = manifest.mask_copies * bytes_per_copy(manifest.seq_length)
    if masks.dtype != np.uint8 or len(masks) != len(ids) or (masks.lengths != mask_bytes).any():
        raise ConfigError(f"{path}.mask: has not one row of masks per sequence; build the shards again")
    if ids.dtype != np.uint16 or (len(ids), len(ids.data)) != (shard.sequences, shard.tokens):
        raise ConfigError(
            f"{path}: holds {len(ids)} sequences and {len(ids.data)} tokens, but manifest.json says {shard.sequences} "
            f"and {shard.tokens}; build the shards again"
        )
    if len(ids) and not 2 < ids.lengths.min() <= ids.lengths.max() <= manifest.seq_length:
        raise ConfigError(f"{path}: a sequence's length is out of bounds; build the shards again")
    return ids, masks


@dataclass
class Figures:
    """Counts over the sequences seen."""

    sequences: int = 0
    tokens: int = 0
    pairs: int = 0
    masked: int = 0
    mask_sites: int = 0
    runs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, rows: Rows, manifest: Manifest) -> None:
        """Counts some rows in."""
        self.sequences += len(rows.lengths)
        self.tokens += int(rows.lengths.sum())
        self.pairs += int(((rows.ids == manifest.special_tokens.sep).sum(1) == 2).sum())
        self.masked += int(rows.masked.sum())
        self.mask_sites += int(rows.lengths.sum()) * manifest.mask_copies
        self.runs = add_counts(self.runs, np.bincount(run_lengths(rows.masked)))

    def join(self, other: "Figures") -> None:
        """Counts in what was counted elsewhere."""
        for name in ("sequences", "tokens", "pairs", "masked", "mask_sites"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.runs = add_counts(self.runs, other.runs)


def add_counts(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The sum of two arrays of counts, of which the shorter has none beyond its end."""
    length = max(len(left), len(right))
    total: np.ndarray = np.pad(left, (0, length - len(left))) + np.pad(right, (0, length - len(right)))
    return total


def run_lengths(masked: np.ndarray) -> np.ndarray:
    """Lengths of the unbroken runs of masked positions."""
    edges = np.diff(np.pad(masked, ((0, 0), (0, 0), (1, 1))).astype(np.int8), axis=-1).ravel()
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


def problems_of(rows: Rows, manifest: Manifest) -> list[str]:
    """What is wrong with some sequences and their masks; nothing, normally."""
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
        "has not one or two segments": ~np.isin(separators.sum(1), (1, 2)),
        "has [MASK] or [PAD] among its tokens": (inside & np.isin(rows.ids, (special.mask, special.pad))).any(1),
        "has an id beyond the vocabulary": (rows.ids >= manifest.vocab_size).any(1),
        "has a mask beyond its end": beyond | (masked & ~inside[:, None]).any((1, 2)),
        "has a special token masked": (masked & (inside & forbidden)[:, None]).any((1, 2)),
        "has not ceil(0.15 n) masked positions": (masked.sum(-1) != np.asarray(mask_size(rows.lengths))[:, None]).any(
            1
        ),
    }
    return [
        f"sequence {rows.first + int(np.argmax(wrong))} {problem}" for problem, wrong in checks.items() if wrong.any()
    ]


def tokenizer_problems(folder: Path, manifest: Manifest) -> list[str]:
    """Where a folder's tokenizer is not the one that the manifest names; nothing, normally."""
    problems = []
    tokenizer = WordPiece.load(folder / TOKENIZER_NAME)
    ours = (tokenizer.sha256(), tokenizer.vocab_size, tokenizer.special)
    if ours != (manifest.tokenizer_sha256, manifest.vocab_size, manifest.special_tokens):
        problems.append(f"{TOKENIZER_NAME}: not the tokenizer that the manifest names, or with other special ids")
    written = manifest.tokenizer_files or {"vocab.txt": sha256(tokenizer.files()["vocab.txt"]).hexdigest()}
    for name, expected in written.items():
        path = folder / TOKENIZER_NAME / name
        if not path.is_file() or file_sha256(path) != expected:
            problems.append(f"{TOKENIZER_NAME}/{name}: missing, or changed since it was written")
    return problems


def size_problem(path: Path, expected: int) -> str | None:
    """Of a file that is missing or has not the size that was written."""
    try:
        size = path.stat().st_size
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    return None if size == expected else f"{path.name}: {size} bytes, expected {expected}"


def checksum_problems(folder: Path, shard: ShardEntry) -> list[str]:
    """Files of a shard that are missing or not those that were written."""
    problems = []
    for name, expected in shard.files.items():
        if problem := size_problem(folder / name, shard.sizes[name]):
            problems.append(problem)
        elif file_sha256(folder / name) != expected:
            problems.append(f"{name}: changed since it was written (sha256)")
    return problems


def megatron_problems(folder: Path, shard: ShardEntry) -> list[str]:
    """Where megatron-core's own reader sees other items than ours."""
    with warnings.catch_warnings(action="ignore"):  # about GPU libraries that reading does not need
        from megatron.core.datasets.indexed_dataset import IndexedDataset

    problems = []
    for name in (shard.name, f"{shard.name}.mask"):
        ours, theirs = IndexedFile(folder / name), IndexedDataset(str(folder / name))
        if len(ours) != len(theirs) or not all(np.array_equal(ours[item], theirs[item]) for item in range(len(ours))):
            problems.append(f"{name} is read differently by megatron-core")
    return problems
