"""Reads files and tables in pieces, which end at the end of a document.

Of a file in independent compressed blocks, several workers read a stretch each. A document that runs on into the next
stretch belongs to the stretch where it begins: the first end of a document in the text of the next stretch divides the
two. Both workers look for it in the same way. One reads on to it, and the other begins there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, BinaryIO, NamedTuple

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
from data_prep.unpacking import DAMAGED, find_block, opened, unpacked
from foundation.config import ConfigError

_BLOCK = 1 << 20  # bytes of text read at a time
_LOOK = 1 << 16  # bytes of plain text read first where a piece may end
_OVERLAP = 80  # bytes searched again with the next block; a document's end may span both


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


def read(stretch: Stretch, budget: int, reading: Reading, longest: int = LONGEST_DOCUMENT) -> Iterator[Piece]:
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
            cutter = Cutter(source, beginning, budget, longest, reading)
            if stream is None:
                yield from cut_plain(cutter, raw)
            elif stretch.size == source.size:
                blocks = chain([beginning], _blocks(stream, budget))
                yield from _cut_stream(cutter, ((block, False) for block in blocks))
            else:
                yield from _cut_blocks(cutter, stretch, raw)
        except DAMAGED as error:
            raise ConfigError(f"input: {source.path} cannot be read to the end ({error}); replace the file") from None


class Cutter:
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


def cut_plain(cutter: Cutter, file: BinaryIO) -> Iterator[Piece]:
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


def _cut_blocks(cutter: Cutter, stretch: Stretch, raw: BinaryIO) -> Iterator[Piece]:
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


def _text_of(cutter: Cutter, stretch: Stretch, raw: BinaryIO) -> Iterator[bytes]:
    """Yields the text of the blocks that begin in the stretch."""
    first = find_block(raw, stretch.start, stretch.end)
    if first is not None:
        yield from _blocks(unpacked(raw, first, find_block(raw, stretch.end)), cutter.budget)


def _cut_stream(
    cutter: Cutter, blocks: Iterator[tuple[bytes, bool]], start: int = 0, origin: int = 0
) -> Iterator[Piece]:
    """Yields the pieces of unpacked text, which comes in blocks; each tells if the text is cut within a document."""
    held, searched, cut_off = bytearray(), 0, False
    for block, is_cut in blocks:
        cut_off = is_cut
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
