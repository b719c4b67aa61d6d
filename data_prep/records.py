"""The record log of a build: append-only, a checksum per line, one writer.

    LINE = first 16 hex digits of the sha256 of REST, a space, REST
    REST = kind number JSON

Kinds: `plan`; `chunk`, a chunk's text, books and parts; `train` and `held_out`, a merged shard. If several
lines have the same kind and number, the last one counts. A torn or damaged line is ignored, and the chunk or shard that
it recorded is rebuilt.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, Self

from pydantic import Field

from data_prep.chunks import place_of
from data_prep.manifest import HELD_OUT_NAME, LOG_NAME, Books, BuildConfig, ShardEntry
from foundation.config import ConfigError, StrictRecord
from foundation.files import NewFile, flush

PLAN, CHUNK, TRAIN, HELD_OUT = "plan", "chunk", "train", "held_out"
SIDES = (TRAIN, HELD_OUT)
_DIGITS = 16
_SECONDS_BETWEEN_FLUSHES = 1.0  # a power failure loses the last second's chunks; a killed process loses none


class Plan(StrictRecord):
    """Everything that determines a build's bytes; a run can resume a build only with an equal plan."""

    config: BuildConfig
    versions: dict[str, str]
    inputs: dict[str, int]
    """Bytes on disk of every input file, by its key."""


class PartEntry(StrictRecord):
    """The log's entry for a part: the sequences of one chunk on one side."""

    sequences: int
    tokens: int
    """Special tokens included."""
    word_pieces: int
    unknown: int
    """[UNK] among the word pieces."""
    ngrams: tuple[int, ...]
    """How often an n-gram of 1, 2, ... words was drawn for the masks."""
    size: int
    """Bytes of the part's file: lengths, ids and masks."""
    sha256: str
    """The sha256 of the part's file."""


class Contaminated(StrictRecord):
    """A document that was dropped because it shares an n-gram with an evaluation set."""

    document: str
    """Key of its file, and its byte offset there."""
    evaluation_set: str
    example: str
    ngram: str


class ChunkRecord(StrictRecord):
    """The result of one chunk; `train` or `held_out` is None if that side received no text."""

    number: int
    key: str
    text: str
    """Digest of the chunk's text."""
    duplicates: str
    """Digest of the indices of the documents that are copies of others in the corpus."""
    books: Books
    train: PartEntry | None
    held_out: PartEntry | None
    contaminated: tuple[Contaminated, ...] = Field((), exclude_if=lambda found: not found)
    """The chunk's first contaminated documents."""

    def part(self, side: str) -> PartEntry | None:
        """Returns the chunk's part on a side; None if it has none."""
        return self.train if side == TRAIN else self.held_out


_RECORDS: dict[str, type[StrictRecord]] = {PLAN: Plan, CHUNK: ChunkRecord, TRAIN: ShardEntry, HELD_OUT: ShardEntry}


class RecordLog:
    """The log in a build's folder. In memory it keeps a few bytes per chunk and the entries of the shards.

    Args:
        mode: "rb" to read only.

    Attributes:
        plan: the build's plan; None if the log is new or the plan is unreadable.
        shards: the merged shards by side and number. A damaged one is deleted here until it is merged again.
        damaged: number of damaged lines, which are ignored.

    Raises:
        ConfigError: the log cannot be opened.
    """

    def __init__(self, folder: Path, mode: Literal["a+b", "rb"] = "a+b", name: str = LOG_NAME) -> None:
        self.path = folder / name
        self.plan: Plan | None = None
        self.shards: dict[str, dict[int, ShardEntry]] = {side: {} for side in SIDES}
        self._flushed = time.monotonic()
        try:
            is_new = not self.path.exists()
            self._open(mode)
        except OSError as error:
            raise ConfigError(f"output: {self.path} cannot be opened ({error.strerror}); check the disk") from None
        if is_new:
            flush(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._flush()
        self._file.close()

    def __len__(self) -> int:
        """Number of chunks recorded."""
        return sum(kind == CHUNK for kind, _ in self._places)

    def chunk(self, number: int) -> ChunkRecord | None:
        """Returns the record of a chunk; None if there is none."""
        if (CHUNK, number) not in self._places:
            return None
        return ChunkRecord.model_validate_json(_split(self._line(CHUNK, number))[2])

    def chunks(self) -> Iterator[ChunkRecord]:
        """Yields the records of all chunks, in the order of the input."""
        return filter(None, map(self.chunk, self.numbers()))

    def numbers(self) -> list[int]:
        """Returns the numbers of all chunks recorded, in the order of the input."""
        return sorted((number for kind, number in self._places if kind == CHUNK), key=place_of)

    def add(self, kind: str, number: int, record: StrictRecord) -> None:
        """Appends a record; it is on the disk when this returns, or about a second later for a chunk."""
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(_signed(f"{kind} {number} {record.model_dump_json()}\n".encode()))
        self._file.flush()
        self._take(kind, number, record, place)
        if kind != CHUNK or time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
            self._flush()

    def put_in_order(self) -> None:
        """Sorts the log into plan, chunks and shards by number, so that equal builds have equal logs."""
        kinds = list(_RECORDS)
        ordered = sorted(self._places, key=lambda key: (kinds.index(key[0]), place_of(key[1])))
        if self._lines == len(ordered) and list(self._places) == ordered:
            return
        file = NewFile(self.path)
        for key in ordered:
            file.write(self._line(*key))
        file.close()
        self._file.close()
        self._open("a+b")

    def _open(self, mode: Literal["a+b", "rb"]) -> None:
        """Opens the file, indexes its records and truncates a torn last line."""
        self._file: BinaryIO = self.path.open(mode)
        self._places: dict[tuple[str, int], int] = {}  # in the order of the file
        self._lines = self.damaged = place = 0
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n") and self._file.writable():
                self._file.truncate(place)
                break
            try:
                kind, number, content = _split(line)
                self._take(kind, number, _RECORDS[kind].model_validate_json(content), place)
            except (ValueError, KeyError):
                self.damaged += 1
            place += len(line)
        self._lines += self.damaged

    def _take(self, kind: str, number: int, record: StrictRecord, place: int) -> None:
        self._lines += 1
        self._places.pop((kind, number), None)
        self._places[kind, number] = place
        if isinstance(record, Plan):
            self.plan = record
        elif isinstance(record, ShardEntry):
            self.shards[kind][number] = record

    def _line(self, kind: str, number: int) -> bytes:
        self._file.seek(self._places[kind, number])
        return self._file.readline()

    def _flush(self) -> None:
        os.fsync(self._file.fileno())
        self._flushed = time.monotonic()


def folder_of(output: Path, side: str) -> Path:
    """Returns the shard folder of a side, training or held out."""
    return output if side == TRAIN else output / HELD_OUT_NAME


def _signed(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest()[:_DIGITS].encode() + b" " + rest


def _split(line: bytes) -> tuple[str, int, bytes]:
    """Returns kind, number and JSON of a line of the log.

    Raises:
        ValueError: the line is damaged.
    """
    rest = line[_DIGITS + 1 :]
    if line != _signed(rest):
        raise ValueError("damaged")
    kind, number, content = rest.split(b" ", 2)
    return kind.decode(), int(number), content
