"""Reads the sequences and masks of a shard folder as arrays, checks them and their files, and computes statistics."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from data_prep.manifest import Manifest, ShardEntry
from data_prep.masking import Masker, bytes_per_copy, mask_size
from data_prep.shards import IndexedFile
from data_prep.tokens import TOKENIZER_NAME, WordPiece
from foundation.config import ConfigError
from foundation.files import file_sha256

_BATCH = 4096  # sequences per batch
_SIMULATED, _DRAWS = 64, 4  # sequences masked again per batch, and masks drawn for each
_PIECES = 5  # classes of word pieces: the first four of a word, and all later ones together


@dataclass(frozen=True)
class Rows:
    """Consecutive sequences of a shard with their masks; `first` is the number of the first one.

    `ids` uint16 [S, seq_length], padded; `lengths` int32 [S]; `masked` bool [S, copies, bits of a bitmap].
    """

    first: int
    ids: np.ndarray
    lengths: np.ndarray
    masked: np.ndarray


def read_rows(
    folder: Path, shard: ShardEntry, manifest: Manifest, first: int = 0, limit: int | None = None
) -> Iterator[Rows]:
    """Yields batches of the shard's sequences, in order from number `first` on, at most `limit` in all.

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
    """Yields about `blocks` blocks of `block` sequences, spread evenly over all shards; all if there are fewer.

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


def megatron_problems(folder: Path, shard: ShardEntry) -> list[str]:
    """Returns the files of a shard that megatron-core's own reader, if it is installed, reads differently from ours."""
    if find_spec("megatron") is None:
        return []
    with warnings.catch_warnings(action="ignore"):  # about GPU libraries that reading does not need
        from megatron.core.datasets.indexed_dataset import IndexedDataset

    problems = []
    for name in (shard.name, f"{shard.name}.mask"):
        ours, theirs = IndexedFile(folder / name), IndexedDataset(str(folder / name))
        if len(ours) != len(theirs) or not all(np.array_equal(ours[item], theirs[item]) for item in range(len(ours))):
            problems.append(f"{name} is read differently by megatron-core")
    return problems


class MaskStatistics:
    """Statistics of sequences and their masks: where the masks fall, and where they are expected to fall.

    A token is masked with probability k / m, where m tokens of its sequence may be masked and k are. The `chance`
    arrays hold the expected counts, and `simulated_runs` the runs of freshly drawn masks.

    Array suffixes: S sequences, C mask copies, P positions, M tokens that may be masked, W words.

    Args:
        seq_length: longest sequence in tokens.

    Attributes:
        pairs: sequences with two segments. most_cut: most words cut by one mask.
    """

    def __init__(self, seq_length: int) -> None:
        self.sequences = self.tokens = self.pairs = 0
        self.words_masked = self.words_cut = self.most_cut = 0
        self.position, self.position_chance = np.zeros((2, seq_length))
        self.piece, self.piece_chance = np.zeros((2, _PIECES))
        self.runs, self.simulated_runs = np.zeros((2, seq_length + 1), np.int64)

    def add(self, rows: Rows, manifest: Manifest, tokenizer: WordPiece) -> None:
        """Adds these sequences and their masks to the statistics."""
        length = manifest.seq_length
        self.sequences += len(rows.lengths)
        self.tokens += int(rows.lengths.sum())
        self.pairs += int(((rows.ids == manifest.special_tokens.sep).sum(1) == 2).sum())
        masked_SCP = rows.masked[:, :, :length]
        self.runs += np.bincount(run_lengths(masked_SCP), minlength=length + 1)
        inside_SP = np.arange(length) < rows.lengths[:, None]
        maskable_SP = inside_SP & ~tokenizer.never_masked[rows.ids]
        start_SP = maskable_SP & ~tokenizer.continuation[rows.ids]
        start_SP[:, 1:] |= maskable_SP[:, 1:] & ~maskable_SP[:, :-1]
        chance_S = mask_size(rows.lengths) / maskable_SP.sum(1) * manifest.mask_copies
        chance_SP = np.where(maskable_SP, chance_S[:, None], 0.0)
        count_SP = masked_SCP.sum(1)
        self.position += count_SP.sum(0)
        self.position_chance += chance_SP.sum(0)
        first_SP = np.maximum.accumulate(np.where(start_SP, np.arange(length), 0), axis=1)
        piece_M = np.minimum(np.arange(length) - first_SP, _PIECES - 1)[maskable_SP]
        self.piece += np.bincount(piece_M, count_SP[maskable_SP], _PIECES)
        self.piece_chance += np.bincount(piece_M, chance_SP[maskable_SP], _PIECES)
        self._count_words(masked_SCP, maskable_SP, start_SP)
        masker = Masker(length, _DRAWS, manifest.config.ngram, tokenizer.never_masked, tokenizer.continuation)
        some = np.flatnonzero(mask_size(rows.lengths) <= maskable_SP.sum(1))[:_SIMULATED]  # fails only if damaged
        bitmaps, _ = masker.draw(rows.ids[some][inside_SP[some]], rows.lengths[some], np.random.default_rng(rows.first))
        drawn_SCP = np.unpackbits(bitmaps.reshape(-1, _DRAWS, bytes_per_copy(length)), axis=-1, bitorder="little")
        self.simulated_runs += np.bincount(run_lengths(drawn_SCP), minlength=length + 1)

    def _count_words(self, masked_SCP: np.ndarray, maskable_SP: np.ndarray, start_SP: np.ndarray) -> None:
        first_W = np.flatnonzero(start_SP[maskable_SP])
        size_W = np.diff(first_W, append=int(maskable_SP.sum()))
        first_word_S = np.cumsum(start_SP.sum(1)) - start_SP.sum(1)
        for copy in range(masked_SCP.shape[1]):
            masked_W = np.add.reduceat(masked_SCP[:, copy][maskable_SP], first_W, dtype=np.int32)
            cut_W = (masked_W > 0) & (masked_W < size_W)
            self.words_masked += int((masked_W > 0).sum())
            self.words_cut += int(cut_W.sum())
            self.most_cut = max(self.most_cut, int(np.add.reduceat(cut_W, first_word_S, dtype=np.int32).max()))

    def join(self, other: "MaskStatistics") -> None:
        """Adds the statistics of other sequences, counted elsewhere."""
        self.most_cut = max(self.most_cut, other.most_cut)
        for name in vars(self).keys() - {"most_cut"}:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def run_lengths(masked: np.ndarray) -> np.ndarray:
    """Returns the lengths of the unbroken runs of masked positions."""
    edges = np.diff(np.pad(masked, ((0, 0), (0, 0), (1, 1))).astype(np.int8), axis=-1).ravel()
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
