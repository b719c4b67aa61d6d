"""Parts of shards: a part holds the sequences of one chunk on one side, and is merged with others into a shard.

A part is written and read block by block. A block is two uint32, its numbers of sequences and tokens, then the
sequences' lengths (int32), ids (uint16) and masks (uint8, `mask_copies` bitmaps per sequence), each concatenated. The
parts' sizes, in the order of the input, determine which parts form a shard.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.manifest import BuildConfig, ShardEntry
from data_prep.masking import Masker, bytes_per_copy
from data_prep.records import PartEntry, folder_of
from data_prep.sequences import TokenStream, build_sequences
from data_prep.shards import IndexedWriter
from data_prep.tokens import WordPiece
from foundation.config import ConfigError
from foundation.files import NewFile, file_sha256

WORK_NAME = ".build"  # folder of parts and hashes; removed once the manifest is written
# Limits of one batch of documents. They bound memory for large chunks, for long documents, and for many tiny documents,
# whose masks take more than their text.
_TOKENS_AT_ONCE = 1 << 22
_DOCUMENTS_AT_ONCE = 1 << 16
_HEADER = struct.Struct("<II")


class Block(NamedTuple):
    """A batch of a part's sequences, concatenated, with their masks."""

    lengths: np.ndarray
    ids: np.ndarray
    masks: np.ndarray


class Side:
    """One side of a chunk, training or held out: collects documents and writes them to `path` as one part.

    Args:
        seed_key: the build's seed, the chunk's key and the side's name; determines the random stream.
    """

    def __init__(self, seed_key: str, config: BuildConfig, tokenizer: WordPiece, path: Path) -> None:
        digest = hashlib.sha256(seed_key.encode()).digest()
        self._random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        self._config, self._tokenizer = config, tokenizer
        self._masker = Masker(
            config.seq_length, config.mask_copies, config.ngram, tokenizer.never_masked, tokenizer.continuation
        )
        self._file = NewFile(path)
        self._counts: Counter[str] = Counter()
        self._ngrams = np.zeros(len(config.ngram), np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._tokens_waiting = 0

    def add(self, ids: np.ndarray, sentence_lengths: np.ndarray) -> None:
        """Adds one document: its concatenated ids and the number of ids in each sentence."""
        self._waiting.append((ids, sentence_lengths))
        self._tokens_waiting += len(ids)
        if self._tokens_waiting >= _TOKENS_AT_ONCE or len(self._waiting) >= _DOCUMENTS_AT_ONCE:
            self._make_sequences()

    def finish(self) -> PartEntry | None:
        """Completes the part; returns None and leaves no file if no document was added."""
        if self._waiting:
            self._make_sequences()
        size, sha256 = self._file.close()
        if not size:
            return None
        return PartEntry(**self._counts, ngrams=tuple(self._ngrams.tolist()), size=size, sha256=sha256)

    def _make_sequences(self) -> None:
        """Writes the sequences and masks of the collected documents."""
        documents, self._waiting, self._tokens_waiting = self._waiting, [], 0
        text = np.concatenate([ids for ids, _ in documents])
        stream = TokenStream(
            text,
            ~self._tokenizer.continuation[text],
            np.cumsum(np.concatenate([lengths for _, lengths in documents])),
            np.cumsum([len(ids) for ids, _ in documents]),
        )
        config, special = self._config, self._tokenizer.special
        ids, lengths = build_sequences(
            stream,
            config.seq_length,
            config.packing,
            config.builder,
            special.cls,
            special.sep,
            self._random,
            config.one_segment,
        )
        masks, ngrams = self._masker.draw(ids, lengths, self._random)
        write_block(self._file, Block(lengths, ids, masks))
        self._ngrams += ngrams
        self._counts.update(
            sequences=len(lengths),
            tokens=len(ids),
            word_pieces=int((~np.isin(ids, (special.cls, special.sep))).sum()),
            unknown=int((ids == special.unk).sum()),
        )


def part_path(output: Path, side: str, number: int) -> Path:
    """The file of a chunk's part on one side, until it is merged into a shard."""
    return output / WORK_NAME / f"{side}-{number:05d}.part"


def write_block(file: NewFile, block: Block) -> None:
    """Appends a block of sequences to a part's file."""
    arrays = (block.lengths.astype(np.int32), block.ids.astype(np.uint16, copy=False), block.masks)
    for content in (_HEADER.pack(len(block.lengths), len(block.ids)), *(array.tobytes() for array in arrays)):
        file.write(content)


def read_part(path: Path, part: PartEntry, mask_bytes: int) -> Iterator[Block]:
    """Yields the blocks of a part; `mask_bytes` is the size of a sequence's bitmaps.

    Raises:
        ConfigError: the part has changed since it was written.
        OSError: it is missing.
    """
    if file_sha256(path) != part.sha256:
        raise ConfigError(f"output: {path} has changed since it was written; run the same command to write it again")
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            sequences, tokens = _HEADER.unpack(header)
            yield Block(
                np.fromfile(file, np.int32, sequences),
                np.fromfile(file, np.uint16, tokens),
                np.fromfile(file, np.uint8, mask_bytes * sequences),
            )


class Merge(NamedTuple):
    """A shard to write: its range of chunks, and their parts on this side; a chunk may have none."""

    side: str
    number: int
    first_chunk: int
    last_chunk: int
    parts: tuple[tuple[int, PartEntry], ...]
    """Pairs of a chunk's number and its part."""


class ShardCutter:
    """Groups one side's parts, in the order of their chunks, into shards.

    Args:
        limit: most bytes of parts in a shard, unless a single part has more.
    """

    def __init__(self, side: str, limit: float) -> None:
        self._side, self._limit = side, limit
        self._number = self._size = 0
        self._parts: list[tuple[int, PartEntry]] = []

    def add(self, chunk: int, part: PartEntry | None) -> Iterator[Merge]:
        """Adds the next chunk's part; yields the shard of the parts before it if this part does not fit into it."""
        if part is None:
            return
        if self._size + part.size > self._limit:
            yield from self.end()
        self._parts.append((chunk, part))
        self._size += part.size

    def end(self) -> Iterator[Merge]:
        """Yields a last shard of the remaining parts, if any."""
        if self._parts:
            first, last = self._parts[0][0], self._parts[-1][0]
            yield Merge(self._side, self._number, first, last, tuple(self._parts))
            self._number, self._size, self._parts = self._number + 1, 0, []


def merge_parts(merge: Merge, config: BuildConfig, output: Path) -> ShardEntry:
    """Writes a shard and returns its entry for the manifest; keeps the parts.

    Raises:
        ConfigError: a part is damaged.
        OSError: a part is missing, or the disk is full.
    """
    folder, name = folder_of(output, merge.side), f"shard-{merge.number:05d}"
    ids, masks = IndexedWriter(folder / name, np.uint16), IndexedWriter(folder / f"{name}.mask", np.uint8)
    row = config.mask_copies * bytes_per_copy(config.seq_length)
    for chunk, part in merge.parts:
        for block in read_part(part_path(output, merge.side, chunk), part, row):
            ids.add(block.ids, block.lengths)
            masks.add(block.masks, np.full(len(block.lengths), row))
    parts = [part for _, part in merge.parts]
    return ShardEntry(
        name=name,
        first_chunk=merge.first_chunk,
        last_chunk=merge.last_chunk,
        sequences=sum(part.sequences for part in parts),
        tokens=sum(part.tokens for part in parts),
        word_pieces=sum(part.word_pieces for part in parts),
        unknown=sum(part.unknown for part in parts),
        ngrams=tuple(map(sum, zip(*(part.ngrams for part in parts), strict=True))),
        written=ids.close() | {f".mask{suffix}": written for suffix, written in masks.close().items()},
    )
