"""The record log of a build: append-only, a checksum per line, one writer.

    LINE = first 16 hex digits of the sha256 of REST, a space, REST
    REST = kind number JSON

Kinds: `plan`; `chunk`, a chunk's text, books and parts; `train` and `held_out`, a merged shard. Of several lines of one
kind and number the last counts. A line that is torn or damaged counts as absent: what it recorded is built again.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self

from pydantic import ValidationError

from data_prep.manifest import HELD_OUT_NAME, Books, BuildConfig, ShardEntry
from foundation.config import ConfigError, StrictRecord
from foundation.files import TEMPORARY_SUFFIX, flush, flush_file, with_suffix

LOG_NAME = "records.log"
TRAIN, HELD_OUT = "train", "held_out"
SIDES = (TRAIN, HELD_OUT)
_PLAN, _CHUNK = "plan", "chunk"
_DIGITS = 16
_SECONDS_BETWEEN_FLUSHES = 1.0  # a power failure costs the chunks of the last second; a killed process costs nothing


class Plan(StrictRecord):
    """What decides a build's bytes; every run that resumes it must have the same."""

    config: BuildConfig
    versions: dict[str, str]
    inputs: dict[str, int]
    """Bytes on disk of every input file, by its key."""


class PartEntry(StrictRecord):
    """What a shard gets from one chunk."""

    sequences: int
    tokens: int
    """Special tokens included."""
    word_pieces: int
    unknown: int
    """[UNK] among the word pieces."""
    ngrams: tuple[int, ...]
    """How often an n-gram of 1, 2, ... words was drawn for the masks."""
    size: int
    """Bytes of lengths, ids and masks together."""
    sha256: str
    """Of these bytes."""


class ChunkRecord(StrictRecord):
    """What became of one chunk; `train` or `held_out` is None where no text fell to it."""

    number: int
    key: str
    text: str
    """Digest of its text."""
    duplicates: str
    """Digest of the numbers of those documents that occur earlier in the corpus."""
    books: Books
    train: PartEntry | None
    held_out: PartEntry | None

    def part(self, side: str) -> PartEntry | None:
        """Its part of a side."""
        return self.train if side == TRAIN else self.held_out


class RecordLog:
    """The log in a build's folder. Memory: a few bytes per chunk, and the shards' entries.

    Args:
        mode: "rb" where the log is only read.

    Attributes:
        plan: of the build; None where the log is new or its plan is unreadable.
        shards: the merged shards by side and number.
        damaged: lines that count as absent.

    Raises:
        ConfigError: the log cannot be opened.
    """

    def __init__(self, folder: Path, mode: Literal["a+b", "rb"] = "a+b") -> None:
        self.path = folder / LOG_NAME
        self.plan: Plan | None = None
        self.shards: dict[str, dict[int, ShardEntry]] = {side: {} for side in SIDES}
        self.damaged = 0
        self._places: dict[int, int] = {}
        self._flushed = time.monotonic()
        try:
            is_new = not self.path.exists()
            self._file: BinaryIO = self.path.open(mode)
        except OSError as error:
            raise ConfigError(f"output: {self.path} cannot be opened ({error.strerror}); see to the disk") from None
        if is_new:
            flush(folder)
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush()
        self._file.close()

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __len__(self) -> int:
        """Chunks recorded."""
        return len(self._places)

    def chunk(self, number: int) -> ChunkRecord | None:
        """The record of a chunk; None where there is none."""
        if number not in self._places:
            return None
        self._file.seek(self._places[number])
        return ChunkRecord.model_validate_json(_split(self._file.readline())[2])

    def chunks(self) -> Iterator[ChunkRecord]:
        """The records of all chunks, in the order of the input."""
        for number in sorted(self._places):
            record = self.chunk(number)
            assert record is not None
            yield record

    def add_plan(self, plan: Plan) -> None:
        """Records the plan: the first thing a build writes, and on the disk when this returns."""
        self._append(_PLAN, 0, plan)
        self._flush()
        self.plan = plan

    def add_chunk(self, record: ChunkRecord) -> None:
        """Records a finished chunk, whose parts are on the disk."""
        self._places[record.number] = self._append(_CHUNK, record.number, record)
        if time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
            self._flush()

    def add_shard(self, side: str, number: int, entry: ShardEntry) -> None:
        """Records a merged shard; on the disk when this returns, so that its parts can go."""
        self._append(side, number, entry)
        self._flush()
        self.shards[side][number] = entry

    def put_in_order(self) -> None:
        """Rewrites the log as plan, chunks and shards by number, so that equal builds have equal logs."""
        assert self.plan is not None
        temporary = with_suffix(self.path, TEMPORARY_SUFFIX)
        with temporary.open("wb") as file:
            file.write(_line(_PLAN, 0, self.plan))
            for record in self.chunks():
                file.write(_line(_CHUNK, record.number, record))
            for side in SIDES:
                for number, entry in sorted(self.shards[side].items()):
                    file.write(_line(side, number, entry))
            flush_file(file)
        if self._is_file(temporary):
            temporary.unlink()
            return
        temporary.replace(self.path)
        flush(self.path.parent)
        self._file.close()
        self._file = self.path.open("a+b")
        self._read()

    def _is_file(self, other: Path) -> bool:
        """Whether the log has this very content already."""
        if self.path.stat().st_size != other.stat().st_size:
            return False
        with self.path.open("rb") as ours, other.open("rb") as theirs:
            return all(ours_line == theirs_line for ours_line, theirs_line in zip(ours, theirs, strict=False))

    def _read(self) -> None:
        """Finds the records, and cuts off a torn last line."""
        self._places.clear()
        self._file.seek(0)
        place = 0
        for line in self._file:
            if not line.endswith(b"\n") and self._file.writable():
                self._file.truncate(place)
                break
            self._take(line, place)
            place += len(line)

    def _take(self, line: bytes, place: int) -> None:
        try:
            kind, number, content = _split(line)
            if kind == _CHUNK:
                self._places[number] = place
            elif kind == _PLAN:
                self.plan = Plan.model_validate_json(content)
            else:
                self.shards[kind][number] = ShardEntry.model_validate_json(content)
        except (ValueError, KeyError, ValidationError):
            self.damaged += 1

    def _append(self, kind: str, number: int, value: StrictRecord) -> int:
        """Writes a line; returns where it begins."""
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(_line(kind, number, value))
        self._file.flush()
        return place

    def _flush(self) -> None:
        os.fsync(self._file.fileno())
        self._flushed = time.monotonic()


def folder_of(output: Path, side: str) -> Path:
    """The shard folder of a side."""
    return output if side == TRAIN else output / HELD_OUT_NAME


def _line(kind: str, number: int, value: StrictRecord) -> bytes:
    return _signed(f"{kind} {number} {value.model_dump_json()}\n".encode())


def _signed(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest()[:_DIGITS].encode() + b" " + rest


def _split(line: bytes) -> tuple[str, int, bytes]:
    """Kind, number and JSON of a line.

    Raises:
        ValueError: it is damaged.
    """
    rest = line[_DIGITS + 1 :]
    if line != _signed(rest):
        raise ValueError("damaged")
    kind, number, content = rest.split(b" ", 2)
    return kind.decode(), int(number), content
