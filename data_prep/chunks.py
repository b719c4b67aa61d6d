"""Divides the input into units, which workers read, and each unit into chunks, the units of randomness.

A unit is a list of names and ranges: files, pieces of plain files, or stretches of files in blocks. Rank 0 makes units
from the files' sizes, and looks into large files only at their beginnings and around the cuts of plain text. The worker
that receives a unit reads and unpacks it, and cuts it into chunks.

A chunk is a sequence of pieces of files. Pieces end at the end of a document, so the budget of bytes and the longest
document bound the memory. A document that runs on into the next stretch of its file belongs to the stretch where it
begins. Where a stretch ends, the first end of a document in the text after it divides the two, so that both workers
find the same place: one reads on to it, and the other begins there.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any, BinaryIO, NamedTuple

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
from data_prep.rows import hub_parts, read_rows
from data_prep.sources import Source
from data_prep.unpacking import DAMAGED, find_block, is_in_blocks, is_packed, opened, text_per_byte, unpacked
from foundation.config import ConfigError

_BLOCK = 1 << 20  # bytes of text unpacked at a time
_LOOK = 1 << 16  # bytes of plain text read first where a piece may end
_OVERLAP = 80  # bytes searched again with the next block; a document's end may span both
_SAMPLED_FILES = 256  # each further file costs a seek and adds little
_UNIT_BITS = 32  # low bits of a chunk's number, which hold the number of its unit


@dataclass(frozen=True)
class Piece:
    """Consecutive documents of one file: its text from byte `start` to `end`.

    `content` holds the text if it cannot be sought in the file.

    `cut`: the last document was too long and continues in the next piece. A row of a table is one document.

    `origin`: place in the file, in bytes on disk, from which its text is counted; not 0 only in a stretch of a file.
    """

    source: Source
    format: Format
    start: int
    end: int
    content: bytes | tuple[bytes | None, ...] | None = None
    cut: bool = False
    origin: int = 0
    disk_bytes: int = 0  # of the file on disk, in a sample

    @property
    def size(self) -> int:
        """Bytes of text."""
        return self.end - self.start

    @property
    def place(self) -> str:
        """Identifies where the piece begins in its file."""
        return f"{self.origin}+{self.start}" if self.origin else f"{self.start}"

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
    """Documents that become at most one part per side, training and held out.

    `number` is that of its unit, plus 2^32 times its place in the unit.
    """

    number: int
    pieces: tuple[Piece, ...]
    duplicates: frozenset[int] = frozenset()  # indices in the chunk of documents that occur earlier in the corpus

    @property
    def key(self) -> str:
        """Identifies the chunk's text wherever the input is stored; part of the seed of its random stream."""
        return f"{self.pieces[0].source.key}@{self.pieces[0].place}"

    def loaded(self) -> "Chunk":
        """Returns a copy of the chunk that holds its text, because the files may change or disappear later."""
        return replace(self, pieces=tuple(piece.loaded() for piece in self.pieces))

    def digest(self) -> str:
        """Digest of a loaded chunk: every byte of its text, and the source, bounds and format of each piece."""
        digest = hashlib.blake2b(digest_size=16)
        for piece in self.pieces:
            digest.update(f"{piece.format} {piece.source.key} {piece.place} {piece.end} {piece.cut}\n".encode())
            for row in piece.content if isinstance(piece.content, tuple) else (piece.content,):
                digest.update(b"\0" if row is None else b"\1" + len(row).to_bytes(8, "little"))
                digest.update(row or b"")
        return digest.hexdigest()

    @property
    def duplicates_digest(self) -> str:
        """Digest of the indices of the chunk's duplicate documents."""
        numbers = " ".join(map(str, sorted(self.duplicates)))
        return hashlib.blake2b(numbers.encode(), digest_size=8).hexdigest()


def chunk_number(unit: int, place: int) -> int:
    """Returns the number of the chunk in a place of its unit: that of the unit if it is the first."""
    return place << _UNIT_BITS | unit


def place_of(chunk: int) -> tuple[int, int]:
    """Returns the number of a chunk's unit and its place in the unit; the corpus has chunks in this order."""
    return chunk & ((1 << _UNIT_BITS) - 1), chunk >> _UNIT_BITS


class Stretch(NamedTuple):
    """A range of bytes on disk: the text of the independent blocks, or row groups, that begin in it.

    For a dataset on the hub, a range of its parts.
    """

    source: Source
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes on disk; 0 for a dataset on the hub."""
        return 0 if self.source.on_hub else self.end - self.start


@dataclass(frozen=True)
class Unit:
    """One worker's task: consecutive pieces of plain text, and stretches of files that are not looked into yet."""

    number: int
    stretches: tuple[Piece | Stretch, ...]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(stretch.size for stretch in self.stretches)

    def chunks(self, budget: int, reading: Reading) -> Iterator[Chunk]:
        """Yields the unit's text in chunks of about `budget` bytes; only one is in memory at a time.

        Raises:
            ConfigError: a file is unreadable or damaged, or not in the format that it appears to have.
        """
        count, size = 0, 0
        held: list[Piece] = []
        for stretch in self.stretches:
            for piece in [stretch] if isinstance(stretch, Piece) else _read(stretch, budget, reading):
                if held and size + piece.size > budget:
                    yield Chunk(chunk_number(self.number, count), tuple(held))
                    count, size = count + 1, 0
                    held = []
                held.append(piece)
                size += piece.size
        if held:
            yield Chunk(chunk_number(self.number, count), tuple(held))


def divide(sources: Sequence[Source], budget: int, reading: Reading) -> Iterator[Unit]:
    """Yields the input in units of about `budget` bytes on disk, or of one file that cannot be divided.

    Raises:
        ConfigError: a file is unreadable, or not in the format that it appears to have.
    """
    number, size = 0, 0
    held: list[Piece | Stretch] = []
    for stretch in chain.from_iterable(_stretches(source, budget, reading) for source in sources):
        if held and (size + stretch.size > budget or stretch.source.on_hub):
            yield Unit(number, tuple(held))
            number, size = number + 1, 0
            held = []
        held.append(stretch)
        size += stretch.size
    if held:
        yield Unit(number, tuple(held))


def _stretches(source: Source, budget: int, reading: Reading) -> Iterator[Piece | Stretch]:
    if source.on_hub:
        yield from (Stretch(source, part, part + 1) for part in range(hub_parts(source.path)))
    elif 0 < source.size <= budget:
        yield Stretch(source, 0, source.size)
    elif source.size:
        with opened(source.path) as file:
            beginning = file.read(BEGINNING)
            if beginning.startswith(PARQUET) or is_in_blocks(file):
                starts = range(0, source.size, budget)
                yield from (Stretch(source, start, min(start + budget, source.size)) for start in starts)
            elif is_packed(file):
                yield Stretch(source, 0, source.size)
            else:
                yield from _cut_plain(_Cutter(source, beginning, budget, LONGEST_DOCUMENT, reading), file)


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
        whole = Stretch(source, 0, 1 if source.on_hub else source.size)
        for piece in islice(_read(whole, budget, reading, longest=budget), 1):
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


def _read(stretch: Stretch, budget: int, reading: Reading, longest: int = LONGEST_DOCUMENT) -> Iterator[Piece]:
    """Yields the text of a stretch in pieces of about `budget` bytes.

    They end at document ends; a document is cut only if it runs on for `longest` more bytes.
    """
    source = stretch.source
    if source.on_hub:
        yield from _cut_rows(stretch, budget, reading)
        return
    with opened(source.path) as raw:
        if raw.read(len(PARQUET)) == PARQUET:
            yield from _cut_rows(stretch, budget, reading)
            return
        raw.seek(0)
        try:
            stream = unpacked(raw)
            beginning = (stream or raw).read(BEGINNING)
            cutter = _Cutter(source, beginning, budget, longest, reading)
            if stream is None:
                yield from _cut_plain(cutter, raw)
            elif stretch.size == source.size:
                blocks = chain([beginning], _blocks(stream, budget))
                yield from _cut_stream(cutter, ((block, False) for block in blocks))
            else:
                yield from _cut_blocks(cutter, stretch, raw)
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

    def first_end(self, blocks: Iterator[bytes]) -> tuple[bytearray, tuple[int, bool] | None]:
        """Takes blocks of text up to the first document end; returns them, and `find`'s result: None without an end."""
        seen = bytearray()
        for block in blocks:
            searched = len(seen)
            seen += block
            if found := self.find(seen, 0, searched):
                return seen, found
        return seen, None


def _cut_plain(cutter: _Cutter, file: BinaryIO) -> Iterator[Piece]:
    """Yields the pieces of an uncompressed file, reading only from where a piece may end to where it does end."""
    start, size = 0, cutter.source.size
    while start < size:
        file.seek(start + cutter.budget)
        found = cutter.find(bytearray(file.read(_LOOK)), 0, 0)
        if found is None or found[1] or found[0] == _LOOK:  # more text may move the cut
            file.seek(start + cutter.budget)
            _, found = cutter.first_end(iter(lambda: file.read(_BLOCK), b""))
        length, cut = found or (size, False)
        end = min(start + cutter.budget + length, size)
        yield Piece(cutter.source, cutter.format, start, end, cut=cut and end < size, disk_bytes=end - start)
        start = end


def _blocks(stream: Any, budget: int) -> Iterator[bytes]:
    return iter(lambda: stream.read(max(BEGINNING, min(_BLOCK, budget))), b"")


def _cut_blocks(cutter: _Cutter, stretch: Stretch, raw: BinaryIO) -> Iterator[Piece]:
    """Yields the pieces of a stretch of a compressed file that is in blocks."""
    own = _text_of(cutter, stretch, raw)
    held, start = bytearray(), 0
    if stretch.start:
        held, found = cutter.first_end(own)
        if found is None:
            return  # all of it continues a document of an earlier stretch
        start = found[0]

    def text() -> Iterator[tuple[bytes, bool]]:
        yield bytes(held[start:]), False
        held.clear()
        yield from ((block, False) for block in own)
        followers = range(stretch.end, stretch.source.size, cutter.budget)
        for follower in (Stretch(stretch.source, place, place + cutter.budget) for place in followers):
            after, found = cutter.first_end(_text_of(cutter, follower, raw))
            length, cut = found or (len(after), False)
            yield bytes(after[:length]), cut
            if found:
                return

    yield from _cut_stream(cutter, text(), start, stretch.start)


def _text_of(cutter: _Cutter, stretch: Stretch, raw: BinaryIO) -> Iterator[bytes]:
    """Yields the text of the blocks that begin in the stretch."""
    first = find_block(raw, stretch.start, stretch.end)
    if first is not None:
        yield from _blocks(unpacked(raw, first, find_block(raw, stretch.end)), cutter.budget)


def _cut_stream(
    cutter: _Cutter, blocks: Iterator[tuple[bytes, bool]], start: int = 0, origin: int = 0
) -> Iterator[Piece]:
    """Yields the pieces of unpacked text, which comes in blocks; each tells if the text is cut within a document."""
    held, searched, cut_off = bytearray(), 0, False
    for block, cut_off in blocks:
        held += block
        while len(held) > cutter.budget and (found := cutter.find(held, cutter.budget, searched)):
            length, cut = found
            yield Piece(cutter.source, cutter.format, start, start + length, bytes(held[:length]), cut, origin)
            del held[:length]
            start, searched = start + length, 0
        searched = len(held)
    if held:
        yield Piece(cutter.source, cutter.format, start, start + len(held), bytes(held), cut_off, origin)


def _cut_rows(stretch: Stretch, budget: int, reading: Reading) -> Iterator[Piece]:
    source = stretch.source
    start = size = disk_start = 0
    held: list[bytes | None] = []

    def piece(disk_end: int) -> Piece:
        return Piece(
            source,
            Format.ROWS,
            start,
            start + size,
            tuple(held),
            origin=stretch.start,
            disk_bytes=disk_end - disk_start,
        )

    for text, share in read_rows(source, stretch.start, stretch.end, reading.text_column):
        held.append(text)
        size += len(text or b"")
        if size >= budget:
            disk_end = int(share * source.size)
            yield piece(disk_end)
            start, size, disk_start, held = start + size, 0, disk_end, []
    if held:
        yield piece(source.size)
