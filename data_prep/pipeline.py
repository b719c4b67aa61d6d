"""One chunk of text through every step to its shards: the work of one worker, the same wherever it runs.

The random stream belongs to the chunk (seed, key), and the files are whole once their record is there, so
neither the number of workers nor a restart changes a byte.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_prep.chunks import Chunk
from data_prep.config import StrictConfig
from data_prep.intake import HELD_OUT, TRAIN, Intake, Text
from data_prep.manifest import HELD_OUT_NAME, Books, BuildConfig, ShardEntry
from data_prep.sentences import Sentences, SentenceSplitter
from data_prep.shards import write_atomically
from data_prep.sides import Side
from data_prep.tokens import WordPiece

RECORDS_NAME = ".records"  # folder of the finished chunks' records; gone once the manifest is written
TOKENIZER_NAME = "tokenizer"
PUNKT_NAME = "punkt"
_CHARACTERS_AT_ONCE = 1 << 20  # tokenized together


class ChunkRecord(StrictConfig):
    """What became of one chunk; `train` or `held_out` is None where no text fell to it."""

    number: int
    key: str
    text: str
    """Digest of its documents."""
    duplicates: tuple[int, ...]
    """Numbers of those that stood earlier."""
    modified: dict[str, int]
    """When its files were last modified."""
    books: Books
    train: ShardEntry | None
    held_out: ShardEntry | None


def build_chunk(chunk: Chunk, config: BuildConfig, output: Path, strict: bool = False) -> ChunkRecord:
    """Makes the chunk's shards in `output` and `output/held_out`, and its record.

    Raises:
        ConfigError: its text cannot be read, or, where `strict`, is malformed.
    """
    tokenizer, splitter = load_tools(output, config.sentences)
    sides = {side: Side(f"{config.seed}\n{chunk.key}\n{side}", config, tokenizer) for side in (TRAIN, HELD_OUT)}
    intake = Intake(chunk, config, strict)
    for texts in intake.batches():
        for text, (ids, sentence_lengths) in zip(texts, _tokenize(texts, tokenizer, splitter), strict=True):
            intake.enter(text, ids, sentence_lengths, sides)
    shards = {
        name: side.write(folder_of(output, name), f"shard-{chunk.number:05d}", chunk.key)
        for name, side in sides.items()
    }
    books = intake.books(sides, shards)
    record = ChunkRecord(
        number=chunk.number,
        key=chunk.key,
        text=intake.text_digest,
        duplicates=tuple(sorted(chunk.duplicates)),
        modified=chunk.modified,
        books=books,
        train=shards[TRAIN],
        held_out=shards[HELD_OUT],
    )
    write_atomically(record_path(output, chunk.number), record.model_dump_json().encode())
    return record


def folder_of(output: Path, side: str) -> Path:
    """The shard folder of a side."""
    return output if side == TRAIN else output / HELD_OUT_NAME


def record_path(output: Path, number: int) -> Path:
    """Where the record of a finished chunk lies."""
    return output / RECORDS_NAME / f"{number:05d}.json"


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
