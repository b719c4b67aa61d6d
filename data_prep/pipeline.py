"""One chunk of text through every step to its shards: the work of one worker, the same wherever it runs.

The random stream belongs to the chunk (seed, key), and the files are whole once their record is there, so
neither the number of workers nor a restart changes a byte.
"""

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from data_prep.config import StrictConfig
from data_prep.manifest import HELD_OUT_NAME, Books, BuildConfig, Ledger, ShardEntry
from data_prep.masking import Masker
from data_prep.sentences import SentenceSplitter
from data_prep.sequences import TokenStream, build_sequences
from data_prep.shards import write_atomically, write_indexed_arrays
from data_prep.sources import Boundary, Chunk, documents
from data_prep.tokens import WordPiece

RECORDS_NAME = ".records"  # folder of the finished chunks' records; gone once the manifest is written
TRAIN = "train"
TOKENIZER_NAME = "tokenizer"
PUNKT_NAME = "punkt"
_BATCH = 1 << 20  # characters tokenized at a time


class ChunkRecord(StrictConfig):
    """What became of one chunk; `train` or `held_out` is None where no text fell to it."""

    number: int
    key: str
    books: Books
    train: ShardEntry | None
    held_out: ShardEntry | None


def build_chunk(chunk: Chunk, config: BuildConfig, output: Path) -> ChunkRecord:
    """Makes the chunk's shards in `output` and `output/held_out`, and its record."""
    tokenizer, splitter = load_tools(output)
    text = _Text(chunk, config, tokenizer, splitter)
    shards = {
        side: _write_shard(
            chunk, side, documents.stream(tokenizer.continuation), config, tokenizer, folder_of(output, side)
        )
        for side, documents in text.sides.items()
    }
    train, held_out = shards[TRAIN], shards[HELD_OUT_NAME]
    books = text.books(train, held_out)
    record = ChunkRecord(number=chunk.number, key=chunk.key, books=books, train=train, held_out=held_out)
    write_atomically(record_path(output, chunk.number), record.model_dump_json().encode())
    return record


def folder_of(output: Path, side: str) -> Path:
    """The shard folder of a side."""
    return output if side == TRAIN else output / HELD_OUT_NAME


def record_path(output: Path, number: int) -> Path:
    """Where the record of a finished chunk lies."""
    return output / RECORDS_NAME / f"{number:05d}.json"


@lru_cache(maxsize=1)
def load_tools(output: Path) -> tuple[WordPiece, SentenceSplitter]:
    """The tokenizer and the Punkt model of an output folder, loaded once in a process."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers fill the cores; its threads would compete
    return WordPiece.load(output / TOKENIZER_NAME), SentenceSplitter(output / PUNKT_NAME)


class _Side:
    """The documents of one side, training or held out: token ids, and where sentences and documents end."""

    def __init__(self) -> None:
        self._ids: list[np.ndarray] = []
        self._sentence_lengths: list[np.ndarray] = []
        self._document_lengths: list[int] = []
        self.characters = 0

    def add(self, ids: np.ndarray, sentence_lengths: np.ndarray, characters: int) -> None:
        self._ids.append(ids)
        self._sentence_lengths.append(sentence_lengths)
        self._document_lengths.append(len(ids))
        self.characters += characters

    @property
    def documents(self) -> int:
        return len(self._document_lengths)

    def stream(self, continuation: np.ndarray) -> TokenStream:
        ids = np.concatenate([np.empty(0, np.uint16), *self._ids])
        return TokenStream(
            ids,
            ~continuation[ids],
            np.cumsum(np.concatenate([np.empty(0, np.int64), *self._sentence_lengths])),
            np.cumsum(np.array(self._document_lengths, np.int64)),
        )


class _Text:
    """A chunk's documents, tokenized and sorted into sides."""

    def __init__(self, chunk: Chunk, config: BuildConfig, tokenizer: WordPiece, splitter: SentenceSplitter) -> None:
        self.sides = {TRAIN: _Side(), HELD_OUT_NAME: _Side()}
        self._empty = _Side()
        self._held_out = config.held_out
        self._documents = self._characters = self._word_pieces = self._invalid = 0
        for batch in _batches(chunk, config.documents):
            self._enter(batch, tokenizer, splitter)

    def _enter(self, batch: list[bytes], tokenizer: WordPiece, splitter: SentenceSplitter) -> None:
        texts = [self._decode(content) for content in batch]
        sentences = [splitter.split(text) for text in texts]
        ids, lengths = tokenizer.encode([sentence for document in sentences for sentence in document])
        self._word_pieces += len(ids)
        sentence_ends = np.cumsum([len(document) for document in sentences])
        token_ends = np.concatenate(([0], np.cumsum(lengths)))[sentence_ends]
        documents_ids = np.split(ids, token_ends[:-1])
        documents_lengths = np.split(lengths, sentence_ends[:-1])
        for content, text, document, parts in zip(batch, texts, documents_ids, documents_lengths, strict=True):
            self._side_of(content, document).add(document, parts, len(text))

    def _decode(self, content: bytes) -> str:
        self._documents += 1
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = content.decode(errors="replace")
            self._invalid += text.count("\ufffd") - content.count("\ufffd".encode())
        self._characters += len(text)
        return text

    def _side_of(self, content: bytes, ids: np.ndarray) -> _Side:
        """By the content alone: two equal documents never stand on different sides, whatever the seed."""
        if not len(ids):
            return self._empty
        draw = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) / 2**64
        return self.sides[HELD_OUT_NAME if draw < self._held_out else TRAIN]

    def books(self, train: ShardEntry | None, held_out: ShardEntry | None) -> Books:
        """What was read beside what the shards hold."""
        training, apart = self.sides[TRAIN], self.sides[HELD_OUT_NAME]
        return Books(
            documents=Ledger(
                read=self._documents,
                train=training.documents,
                held_out=apart.documents,
                dropped={"empty": self._empty.documents},
            ),
            characters=Ledger(
                read=self._characters,
                train=training.characters,
                held_out=apart.characters,
                dropped={"empty": self._empty.characters},
            ),
            word_pieces=Ledger(
                read=self._word_pieces,
                train=train.word_pieces if train else 0,
                held_out=held_out.word_pieces if held_out else 0,
            ),
            invalid_utf8=self._invalid,
        )


def _batches(chunk: Chunk, boundary: Boundary) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for piece in chunk.pieces:
        for document in documents(piece, boundary):
            batch.append(document)
            size += len(document)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _write_shard(
    chunk: Chunk, side: str, stream: TokenStream, config: BuildConfig, tokenizer: WordPiece, folder: Path
) -> ShardEntry | None:
    """Sequences and masks of one side, written as one shard; None where there is no text."""
    if not len(stream.ids):
        return None
    random = _random(config.seed, chunk.key, side)
    special = tokenizer.special
    sequences = build_sequences(stream, config.seq_length, config.packing, special.cls, special.sep, random)
    masker = Masker(config.seq_length, config.mask_copies, config.ngram, tokenizer.never_masked, tokenizer.continuation)
    masks, ngrams = masker.draw(sequences.ids, sequences.lengths, random)
    name = f"shard-{chunk.number:05d}"
    mask_lengths = np.full(len(masks), masks.shape[1], np.int32)
    files = write_indexed_arrays(folder / name, sequences.ids, sequences.lengths)
    files |= write_indexed_arrays(folder / f"{name}.mask", masks.ravel(), mask_lengths)
    return ShardEntry(
        name=name,
        chunk=chunk.key,
        sequences=len(sequences.lengths),
        tokens=len(sequences.ids),
        word_pieces=int((~np.isin(sequences.ids, (special.cls, special.sep))).sum()),
        unknown=int((sequences.ids == special.unk).sum()),
        ngrams=tuple(ngrams.tolist()),
        sizes={file: (folder / file).stat().st_size for file in files},
        files=files,
    )


def _random(seed: int, key: str, side: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}\n{key}\n{side}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
