"""One chunk of text through every step to its parts of shards: the work of one worker, the same wherever it runs.

The random stream belongs to the chunk (seed, key), so neither the number of workers nor a restart changes a byte.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.chunks import Chunk
from data_prep.intake import Intake, Text
from data_prep.manifest import BuildConfig
from data_prep.records import HELD_OUT, SIDES, TRAIN, ChunkRecord
from data_prep.sentences import Sentences, SentenceSplitter
from data_prep.sides import Side
from data_prep.tokens import TOKENIZER_NAME, WordPiece
from foundation.config import ConfigError
from foundation.files import file_sha256

WORK_NAME = ".build"  # folder of parts and hashes; gone once the manifest is written
PUNKT_NAME = "punkt"
_CHARACTERS_AT_ONCE = 1 << 20  # tokenized together


class ChunkTask(NamedTuple):
    """A chunk to build, or to check where an earlier run has built it."""

    chunk: Chunk
    record: ChunkRecord | None
    """What the earlier run recorded."""
    merged: frozenset[str]
    """Sides on which a whole shard holds its part already."""


def do_chunk(task: ChunkTask, config: BuildConfig, output: Path, strict: bool = False) -> ChunkRecord:
    """Builds the chunk; one that is built already, from the same text, is left as it is.

    Raises:
        ConfigError: its text has changed since, cannot be read, or, where `strict`, is malformed.
    """
    chunk, record = task.chunk.loaded(), task.record
    text = chunk.digest()
    if record is not None:
        if (record.key, record.text) != (chunk.key, text) or record.duplicates != chunk.duplicates_digest:
            names = ", ".join(sorted({str(piece.source.path) for piece in chunk.pieces})[:3])
            raise ConfigError(
                f"input: the text of {names} is not what {output} was built from; put the old text back, or build into "
                "another --output"
            )
        written = {
            part_path(output, side, record.number): part
            for side in SIDES
            if side not in task.merged and (part := record.part(side))
        }
        if all(
            path.is_file() and path.stat().st_size == part.size and file_sha256(path) == part.sha256
            for path, part in written.items()
        ):
            return record
    return build_chunk(chunk, text, config, output, strict)


def build_chunk(chunk: Chunk, text: str, config: BuildConfig, output: Path, strict: bool = False) -> ChunkRecord:
    """Makes the parts of a loaded chunk whose digest is `text`, and says what became of it.

    Raises:
        ConfigError: its text, where `strict`, is malformed.
    """
    tokenizer, splitter = load_tools(output, config.sentences)
    sides = {
        side: Side(f"{config.seed}\n{chunk.key}\n{side}", config, tokenizer, part_path(output, side, chunk.number))
        for side in SIDES
    }
    intake = Intake(chunk, config, strict)
    for texts in intake.batches():
        for document, (ids, sentence_lengths) in zip(texts, _tokenize(texts, tokenizer, splitter), strict=True):
            intake.enter(document, ids, sentence_lengths, sides)
    parts = {name: side.finish() for name, side in sides.items()}
    return ChunkRecord(
        number=chunk.number,
        key=chunk.key,
        text=text,
        duplicates=chunk.duplicates_digest,
        books=intake.books(sides, parts),
        train=parts[TRAIN],
        held_out=parts[HELD_OUT],
    )


def part_path(output: Path, side: str, number: int) -> Path:
    """Where a chunk's part of a side lies until it is merged into a shard."""
    return output / WORK_NAME / f"{side}-{number:05d}.part"


@lru_cache(maxsize=1)
def load_tools(output: Path, sentences: Sentences) -> tuple[WordPiece, SentenceSplitter]:
    """The tokenizer and the sentence splitter of an output folder, loaded once in a process."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers fill the cores; its threads would compete
    return WordPiece.load(output / TOKENIZER_NAME), SentenceSplitter(
        output / PUNKT_NAME if sentences == "punkt" else None
    )


def _tokenize(
    texts: list[Text], tokenizer: WordPiece, splitter: SentenceSplitter
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The token ids of each text, and how many each of its sentences has."""
    sentences = [splitter.split(text.cleaned.text) for text in texts]
    ids, lengths = _encode([sentence for document in sentences for sentence in document], tokenizer)
    sentence_ends = np.cumsum([len(document) for document in sentences])
    token_ends = np.concatenate(([0], np.cumsum(lengths)))[sentence_ends]
    return zip(np.split(ids, token_ends[:-1]), np.split(lengths, sentence_ends[:-1]), strict=True)


def _encode(sentences: list[str], tokenizer: WordPiece) -> tuple[np.ndarray, np.ndarray]:
    """As the tokenizer's `encode`, but so many at a time that memory stays bounded."""
    ends = np.cumsum([len(sentence) for sentence in sentences])
    cuts = np.flatnonzero(np.diff(ends // _CHARACTERS_AT_ONCE)) + 1
    starts = [0, *cuts.tolist(), len(sentences)]
    encoded = [tokenizer.encode(sentences[start:end]) for start, end in pairwise(starts)]
    return np.concatenate([ids for ids, _ in encoded]), np.concatenate([lengths for _, lengths in encoded])
