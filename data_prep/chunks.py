"""Cuts the input into chunks, the units of work, and reads their documents.

A chunk is a sequence of pieces of files. Pieces end at the end of a document, so the budget of bytes and the longest
document bound the memory. The reader looks at a plain file only around its cuts, and the worker reads the text.
Compressed files and tables allow no seeking: the reader reads them once and sends their text with the chunk.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from typing import Any, BinaryIO

from data_prep.cleaning import clean
from data_prep.formats import (
    BEGINNING,
    END_OF_DOCUMENT,
    LONGEST_DOCUMENT,
    LONGEST_RECORD,
    PARQUET,
    RECORD_FORMATS,
    Document,
    Format,
    Reading,
    cut_point,
    format_of,
    parse,
    split_long,
)
from data_prep.rows import read_rows
from data_prep.sources import Source
from data_prep.unpacking import DAMAGED, opened, text_per_byte, unpacked
from foundation.config import ConfigError

_BLOCK = 1 << 20  # bytes read at a time
_OVERLAP = 80  # bytes searched again with the next block; a document's end may span both
_SAMPLED_FILES = 256  # each further file costs a seek and adds little


@dataclass(frozen=True)
class Piece:
    """Consecutive documents of one file: its text from byte `start` to `end`.

    `content` holds the text if a worker cannot seek to it.

    `cut`: the last document was too long and continues in the next piece. A row of a table is one document.
    """

    source: Source
    format: Format
    start: int
    end: int
    disk_bytes: int  # of the file on disk, for the progress bar
    content: bytes | tuple[bytes | None, ...] | None = None
    cut: bool = False

    @property
    def size(self) -> int:
        """Bytes of text."""
        return self.end - self.start

    def documents(self, reading: Reading) -> Iterator[Document]:
        """Yields the piece's documents in order.

        Raises:
            ConfigError: the file is gone or has changed since it was cut, or a record is too large.
        """
        content, place = self.loaded().content, self.start
        if isinstance(content, tuple):
            for row in content:
                yield from split_long(Document((row or b"").strip(), place, None if row is not None else "no_text"))
                place += len(row or b"")
            return
        assert content is not None
        if self.format in RECORD_FORMATS and len(content) > LONGEST_RECORD:
            ends = [0, *(found.end() for found in END_OF_DOCUMENT[self.format].finditer(content)), len(content)]
            if max(end - start for start, end in pairwise(ends)) > LONGEST_RECORD:
                raise ConfigError(
                    f"input: {self.source.path} has a record of over {LONGEST_RECORD >> 20} MiB, too large for a "
                    f"worker's memory; check that it is really {self.format}, and split or remove the record"
                )
        yield from parse(self.format, content, place, reading)

    def loaded(self) -> "Piece":
        """Returns a copy of the piece that holds its text.

        Raises:
            ConfigError: the file is gone or has changed since it was cut.
        """
        if self.content is not None:
            return self
        with opened(self.source.path) as file:
            file.seek(self.start)
            text = file.read(self.size)
        if len(text) != self.size:
            raise ConfigError(f"input: {self.source.path} changed while it was being read; restore the old file")
        return replace(self, content=text)


@dataclass(frozen=True)
class Chunk:
    """The unit of work; its documents become at most one part per side, training and held out."""

    number: int
    pieces: tuple[Piece, ...]
    duplicates: Mapping[int, str] = field(default_factory=dict)  # reasons to drop copies, by their index in the chunk

    @property
    def key(self) -> str:
        """Identifies the chunk's text wherever the input is stored; part of the seed of its random stream."""
        return f"{self.pieces[0].source.key}@{self.pieces[0].start}"

    def loaded(self) -> "Chunk":
        """Returns a copy of the chunk that holds its text, because the files may change or disappear later."""
        return replace(self, pieces=tuple(piece.loaded() for piece in self.pieces))

    def digest(self) -> str:
        """Digest of a loaded chunk: every byte of its text, and the source, bounds and format of each piece."""
        digest = hashlib.blake2b(digest_size=16)
        for piece in self.pieces:
            digest.update(f"{piece.format} {piece.source.key} {piece.start} {piece.end} {piece.cut}\n".encode())
            for row in piece.content if isinstance(piece.content, tuple) else (piece.content,):
                digest.update(b"\0" if row is None else b"\1" + len(row).to_bytes(8, "little"))
                digest.update(row or b"")
        return digest.hexdigest()

    @property
    def duplicates_digest(self) -> str:
        """Digest of the indices of the chunk's duplicate documents, and of the reasons of near copies."""
        numbers = " ".join(f"{n} {why}".removesuffix(" duplicate") for n, why in sorted(self.duplicates.items()))
        return hashlib.blake2b(numbers.encode(), digest_size=8).hexdigest()

    @property
    def disk_bytes(self) -> int:
        """Bytes of the input on disk that the chunk covers."""
        return sum(piece.disk_bytes for piece in self.pieces)


def read_chunks(sources: Sequence[Source], budget: int, reading: Reading) -> Iterator[Chunk]:
    """Yields the input in chunks of about `budget` bytes of text; only one is in memory at a time.

    Raises:
        ConfigError: a file is unreadable or damaged, or not in the format that it appears to have.
    """
    number, size = 0, 0
    held: list[Piece] = []
    for source in sources:
        for piece in _cut(source, budget, reading):
            if held and size + piece.size > budget:
                yield Chunk(number, tuple(held))
                number, size = number + 1, 0
                held = []
            held.append(piece)
            size += piece.size
    if held:
        yield Chunk(number, tuple(held))


def sample_pieces(sources: Sequence[Source], size: int, reading: Reading) -> Iterator[Piece]:
    """Yields about `size` bytes of text, from the beginnings of files spread evenly over the corpus.

    Each sampled file gives at least one record. After long records, such as whole novels, files are skipped to keep
    the sample near its size.

    Raises:
        ConfigError: as `read_chunks`.
    """
    files = sources[:: max(1, len(sources) // _SAMPLED_FILES)]
    budget = max(1, size // len(files))
    taken = 0
    for number, source in enumerate(files):
        if taken > 2 * budget * number:
            continue
        for piece in islice(_cut(source, budget, reading, longest=budget), 1):
            taken += piece.size
            if isinstance(piece.content, bytes):
                share = text_per_byte(source.path)
                piece = replace(piece, disk_bytes=min(source.size, round(piece.size / share)))
            yield piece


def sample_documents(sources: Sequence[Source], size: int, reading: Reading) -> Iterator[str]:
    """Yields the cleaned text of each document in the sample that `sample_pieces` draws."""
    for piece in sample_pieces(sources, size, reading):
        for document in piece.documents(reading):
            if document.reason is None:
                yield clean(document.content, wikitext=document.wikitext).text


def _cut(source: Source, budget: int, reading: Reading, longest: int = LONGEST_DOCUMENT) -> Iterator[Piece]:
    """Yields the source in pieces of about `budget` bytes.

    They end at document ends; a document is cut only if it runs on for `longest` more bytes.
    """
    if source.on_hub:
        yield from _cut_rows(source, budget, reading)
        return
    with opened(source.path) as raw:
        if raw.read(len(PARQUET)) == PARQUET:
            yield from _cut_rows(source, budget, reading)
            return
        raw.seek(0)
        try:
            stream = unpacked(raw)
            beginning = bytearray((stream or raw).read(BEGINNING))
            cutter = _Cutter(source, bytes(beginning), budget, longest, reading)
            yield from _cut_plain(cutter, raw) if stream is None else _cut_stream(cutter, raw, stream, beginning)
        except DAMAGED as error:
            raise ConfigError(f"input: {source.path} cannot be read to the end ({error}); replace the file") from None


class _Cutter:
    """Finds the places where one file may be cut."""

    def __init__(self, source: Source, beginning: bytes, budget: int, longest: int, reading: Reading) -> None:
        self.source, self.budget = source, budget
        self.format = format_of(source.path, beginning, reading.boundary)
        self._end = END_OF_DOCUMENT[self.format]
        self._longest = LONGEST_RECORD if self.format in RECORD_FORMATS else longest

    def find(self, text: bytearray, budget_end: int, searched: int) -> tuple[int, bool] | None:
        """Returns the first document end in `text` after `budget_end`, and whether the cut there is forced.

        Returns None if more text must be read to find one. The first `searched` bytes have been searched already.
        """
        if found := self._end.search(text, max(budget_end, searched - _OVERLAP)):
            return found.end(), False
        if len(text) - budget_end <= self._longest:
            return None
        if self.format in RECORD_FORMATS:
            return len(text), False  # refused when the piece is read
        return budget_end + cut_point(bytes(text[budget_end:])), True


def _cut_plain(cutter: _Cutter, file: BinaryIO) -> Iterator[Piece]:
    """Yields the pieces of an uncompressed file, reading only from where a piece may end to where it does end."""
    start, size = 0, cutter.source.size
    while start < size:
        file.seek(start + cutter.budget)
        seen, found = bytearray(), None
        while found is None and (block := file.read(_BLOCK)):
            searched = len(seen)
            seen += block
            found = cutter.find(seen, 0, searched)
        length, cut = found or (len(seen), False)
        del seen  # frees memory: the generator is suspended while the piece is processed
        end = min(start + cutter.budget + length, size)
        yield Piece(cutter.source, cutter.format, start, end, end - start, cut=cut and end < size)
        start = end


def _cut_stream(cutter: _Cutter, raw: BinaryIO, stream: Any, held: bytearray) -> Iterator[Piece]:
    """Yields the pieces of a compressed file, collecting each in `held`, which already has the file's beginning."""
    step = max(BEGINNING, min(_BLOCK, cutter.budget))
    start = disk_start = searched = 0
    for block in chain([b""], iter(lambda: stream.read(step), b"")):
        held += block
        while len(held) > cutter.budget and (found := cutter.find(held, cutter.budget, searched)):
            length, cut = found
            disk_end = raw.tell() * (start + length) // (start + len(held))  # raw is read ahead of the text
            content, disk_bytes = bytes(held[:length]), disk_end - disk_start
            yield Piece(cutter.source, cutter.format, start, start + length, disk_bytes, content, cut)
            del held[:length]
            start, disk_start, searched = start + length, disk_end, 0
        searched = len(held)
    if held:
        disk_bytes = cutter.source.size - disk_start
        yield Piece(cutter.source, cutter.format, start, start + len(held), disk_bytes, bytes(held))


def _cut_rows(source: Source, budget: int, reading: Reading) -> Iterator[Piece]:
    start = size = disk_start = 0
    held: list[bytes | None] = []
    for text, share in read_rows(source, reading.text_column):
        held.append(text)
        size += len(text or b"")
        if size >= budget:
            disk_end = int(share * source.size)
            yield Piece(source, Format.ROWS, start, start + size, disk_end - disk_start, tuple(held))
            start, size, disk_start, held = start + size, 0, disk_end, []
    if held:
        yield Piece(source, Format.ROWS, start, start + size, source.size - disk_start, tuple(held))
