"""Reads the documents of ranges in chunks, which end at document ends and bound the memory of a worker.

A document belongs to the range in which it begins. Two ranges meet at the first document end (such as a blank line) at
or after their common bound: one worker reads up to it, another from it on. Both find it in the same way.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from data_prep.cleaning import clean
from data_prep.formats import (
    BEGINNING,
    END_OF_DOCUMENT,
    LONGEST_DOCUMENT,
    LONGEST_RECORD,
    RECORD_FORMATS,
    Document,
    Format,
    Reading,
    cut_point,
    format_of,
    is_table,
    joined,
    parse,
    read_rows,
    split_long,
    wiki_asides,
)
from data_prep.planning import Range, Shard
from data_prep.sources import Source
from data_prep.unpacking import DAMAGED, TOO_WIDE, index_path, open_seekable, opened, unpacked
from electra_sampler.foundation.config import ConfigError

CHUNK = 2_000_000  # bytes of text
_BLOCK = 1 << 20  # bytes of text read at a time
_SAMPLED_FILES = 256  # each further file costs a seek and adds little

Item = TypeVar("Item")


class Chunk(NamedTuple):
    """Consecutive documents of one source. `content` is their text; for a table, a tuple with the text of each row."""

    source: Source
    format: Format
    place: int
    """Byte offset of the chunk's text in the source's text; for a table, in the range's text."""
    content: bytes | tuple[bytes | None, ...]
    cut: bool = False
    """True if the last document was too long and continues in the next chunk."""

    @property
    def size(self) -> int:
        """Bytes of text."""
        return len(self.content) if isinstance(self.content, bytes) else sum(len(row or b"") for row in self.content)

    def documents(self, reading: Reading) -> Iterator[Document]:
        """Yields the documents in order."""
        found = self._records(reading)
        is_record = self.format in (Format.ROWS, Format.JSON_LINES)
        yield from joined(found) if is_record and reading.boundary == "file" else found

    def _records(self, reading: Reading) -> Iterator[Document]:
        if isinstance(self.content, bytes):
            yield from parse(self.format, self.content, self.place, reading)
        else:
            place = self.place
            for row in self.content:
                yield from split_long(Document((row or b"").strip(), place, None if row is not None else "no_text"))
                place += len(row or b"")


class _Text:
    """The text of one file from some place on, read on demand. A place is a byte offset in the text."""

    def __init__(
        self, source: Source, stream: Any, beginning: bytes, place: int, held: bytes, reading: Reading, longest: int
    ) -> None:
        self.source, self._stream = source, stream
        self.format = format_of(source.path, beginning, reading.boundary)
        self._end = END_OF_DOCUMENT[self.format]
        self._longest = LONGEST_RECORD if self.format in RECORD_FORMATS else longest
        self._held, self._place = bytearray(held), place
        self.is_over = False

    def drop(self, place: int) -> None:
        """Drops the text before a place; reads up to it first if necessary."""
        while self._place < place and (self._held or self._read()):
            gone = min(place - self._place, len(self._held))
            del self._held[:gone]
            self._place += gone

    def take(self, start: int, end: int) -> bytes:
        """Returns the text between two places, up to which it must have been read."""
        return bytes(self._held[start - self._place : end - self._place])

    @property
    def end(self) -> int:
        """The place up to which the text has been read."""
        return self._place + len(self._held)

    def end_after(self, place: int) -> tuple[int, bool]:
        """Returns the place of the first document end from `place` on; and True if it is only a cut in a long document.

        The end of the file ends the last document.

        Raises:
            ConfigError: a record, which must not be cut, is too long.
        """
        searched = 0
        while True:
            at = place - self._place
            limit = at + self._longest
            is_enough = self.is_over or len(self._held) >= limit
            first, last = max(at, searched), min(limit, len(self._held))
            found = self._end.search(self._held, first, last, partial=not is_enough)
            if found and (found.end() < len(self._held) or is_enough):  # else more text may belong to the end
                return self._place + found.end(), False
            if self.is_over and len(self._held) < limit:
                return self.end, False
            if is_enough and self.format in RECORD_FORMATS:
                raise ConfigError(
                    f"input: {self.source.path} has a record of over {LONGEST_RECORD >> 20} MiB, too large for a "
                    f"worker's memory; check that it is really {self.format}, and split or remove the record"
                )
            if is_enough:
                return place + cut_point(bytes(self._held[at:limit])), True
            searched = found.start() if found else len(self._held)  # an end that has begun is searched again
            self._read()

    def _read(self) -> bool:
        block = self._stream.read(min(_BLOCK, max(BEGINNING, self._longest)))  # a sample reads little
        self._held += block
        self.is_over = not block
        return bool(block)


class Reader(ExitStack):
    """Reads ranges one after another. Those of one file must come in order, because reading only moves forward.

    The end of a `with` block closes the file that was read last.

    Args:
        indices: the folder of the indices of large compressed files; None to read them from their beginnings.
        budget: approximate bytes of a chunk. longest: bytes after which a document is cut.
    """

    def __init__(
        self, reading: Reading, indices: Path | None = None, budget: int = CHUNK, longest: int = LONGEST_DOCUMENT
    ) -> None:
        super().__init__()
        self._reading, self._indices, self._budget, self._longest = reading, indices, budget, longest
        self._text: _Text | None = None

    def chunks(self, part: Range) -> Iterator[Chunk]:
        """Yields the documents of a range in chunks of about `budget` bytes.

        Raises:
            ConfigError: the file is unreadable or damaged, or not in the format that it appears to have.
        """
        source = part.source
        try:
            if self._text is None or self._text.source != source or part.start == 0:
                self.close()
                self._text = None
                if is_table(source.path):
                    yield from self._rows(part)
                    return
                self._text = self._opened(source, self.enter_context(opened(source.path)), part.start)
            yield from self._cut(self._text, part)
        except DAMAGED as error:
            fix = (
                "compress it again with a smaller window (unpack it by zstd -d --long=31 or xz -d)"
                if TOO_WIDE.search(str(error))
                else "replace the file"
            )
            raise ConfigError(f"input: {source.path} cannot be read to the end ({error}); {fix}") from None

    def shard(self, shard: Shard) -> Iterator[Chunk]:
        """Yields the documents of all ranges of a shard."""
        return chain.from_iterable(map(self.chunks, shard.ranges))

    def _opened(self, source: Source, raw: Any, start: int) -> _Text:
        packed = unpacked(raw)
        beginning = (packed or raw).read(BEGINNING)
        if packed and not (start and self._indices and index_path(source, self._indices).is_file()):
            return _Text(source, packed, beginning, 0, beginning, self._reading, self._longest)
        stream = self.enter_context(open_seekable(source, self._indices)) if packed and self._indices else raw
        stream.seek(start)
        return _Text(source, stream, beginning, start, b"", self._reading, self._longest)

    def _cut(self, text: _Text, part: Range) -> Iterator[Chunk]:
        """Yields the chunks between the first document ends after the start and after the end of a range."""
        last = sys.maxsize if part.end is None else part.end
        text.drop(part.start)
        start = text.end_after(part.start)[0] if part.start else 0
        is_done = False
        while not is_done:
            end, cut = text.end_after(min(start + self._budget, last))
            if end >= last > start + self._budget:
                end, cut = text.end_after(last)
            is_done = end >= last or (text.is_over and end == text.end)
            if start < end:
                yield Chunk(text.source, text.format, start, text.take(start, end), cut)
            if not is_done:
                text.drop(end)
            start = end

    def _rows(self, part: Range) -> Iterator[Chunk]:
        place = 0
        rows = read_rows(part.source.path, part.start, part.end, self._reading.text_column)
        for texts in batches(rows, self._budget, lambda text: len(text or b"")):
            chunk = Chunk(part.source, Format.ROWS, place, tuple(texts))
            yield chunk
            place += chunk.size


def text_digest() -> "hashlib.blake2b":
    """Returns a new hash object for `hashed`."""
    return hashlib.blake2b(digest_size=16)


def hashed(chunks: Iterable[Chunk], digest: "hashlib.blake2b") -> Iterator[Chunk]:
    """Yields the chunks; updates `digest` with the content, source, place and format of each."""
    for chunk in chunks:
        digest.update(f"{chunk.format} {chunk.source.key} {chunk.place} {chunk.size} {chunk.cut}\n".encode())
        for row in chunk.content if isinstance(chunk.content, tuple) else (chunk.content,):
            digest.update(b"\0" if row is None else b"\1" + len(row).to_bytes(8, "little"))
            digest.update(row or b"")
        yield chunk


def batches(items: Iterable[Item], limit: int, size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yields lists of items whose sizes sum to at least `limit`; the last list may be smaller."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def sample_chunks(sources: Sequence[Source], size: int, reading: Reading) -> Iterator[Chunk]:
    """Yields about `size` bytes of text, from the beginnings of files spread evenly over the corpus.

    A sampled file stands for those before it that are not sampled: it gives text in proportion to the bytes of all of
    them, and at least one record. After long records, such as whole novels, files are skipped to keep the sample near
    its size.

    Raises:
        ConfigError: a file is unreadable or damaged, or not in the format that it appears to have.
    """
    stride = max(1, len(sources) // _SAMPLED_FILES)
    ends = [*accumulate(source.size for source in sources)]
    taken = wanted = 0
    for number, source in enumerate(sources):
        first, last = (_SAMPLED_FILES * place // ends[-1] for place in (ends[number] - source.size, ends[number]))
        if number % stride == 0 or first < last:  # it begins and ends in different parts of the corpus
            before, wanted = wanted, size * ends[number] // ends[-1]
            if taken <= 2 * wanted:
                with Reader(
                    reading,
                    budget=wanted - min(before, taken),  # and what files before it had too little text for
                    longest=max(1, size * stride // len(sources)),
                ) as reader:
                    for chunk in islice(reader.chunks(Range(source)), 1):
                        taken += chunk.size
                        yield chunk


def sample_documents(sources: Sequence[Source], size: int, reading: Reading) -> Iterator[str]:
    """Yields the cleaned text of each document in the sample that `sample_chunks` draws."""
    yield from (
        clean(document.content, wiki_asides(chunk.source.path) if document.wikitext else None).text
        for chunk in sample_chunks(sources, size, reading)
        for document in chunk.documents(reading)
        if document.reason is None
    )
