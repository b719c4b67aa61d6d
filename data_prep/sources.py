"""From files to documents: which files, in which chunks, and where one document ends and the next begins.

Files are read as bytes; compressed ones (gzip, bzip2, xz) are recognised by content. A file whose text starts
with `<doc ` is WikiExtractor's and ends a document at `</doc>`; in any other a blank line does, or only the
file's end. A chunk is a run of pieces of files, each cut at a document's end after a budget of bytes, so
memory is bounded by the budget and the longest document. A plain file is looked at around its cuts and read
by the worker; a compressed one is unpacked once, by the reader of chunks, and travels with the chunk.
"""

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from data_prep.config import ConfigError

Boundary = Literal["blank_line", "file"]

_OPENERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}  # each format's first bytes
_COMPRESSED_SUFFIXES = {".gz", ".bz2", ".xz"}
_TEXT_SUFFIXES = {"", ".txt"}  # WikiExtractor names its files without a suffix
_DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error)
_BLOCK = 1 << 20  # bytes read at a time
_BEGINNING = 4096  # bytes that tell a file's format
_OVERLAP = 80  # bytes searched again with the next block: a boundary may lie across two
_SAMPLED_FILES = 256  # more would cost a seek each and tell little
_BLANK_LINE = re.compile(rb"\n[ \t\r\f\v]*\n")
_DOC_END = re.compile(rb"</doc>[ \t\r]*\n?")
_DOC_START = re.compile(rb"<doc [^>]*>")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Source:
    """An input file; `key` is its path relative to the input it came with, after that input's number."""

    path: Path
    key: str
    size: int  # bytes on disk


@dataclass(frozen=True)
class Piece:
    """Whole documents of one file: bytes `start` to `end`, in `content` where the file is compressed."""

    source: Source
    start: int
    end: int
    wiki_markup: bool
    disk_bytes: int  # of the file on disk, for the progress bar
    content: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of text."""
        return self.end - self.start

    def read(self) -> bytes:
        """The piece's text.

        Raises:
            ConfigError: the file is gone or unreadable.
        """
        if self.content is not None:
            return self.content
        with _opened(self.source.path) as file:
            file.seek(self.start)
            text = file.read(self.size)
        if len(text) != self.size:
            raise ConfigError(f"input: {self.source.path} changed while it was read; put the old file back")
        return text


@dataclass(frozen=True)
class Chunk:
    """The unit of work: makes one shard."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def key(self) -> str:
        """Names the chunk's text, wherever the input lies: part of the seed of its random stream."""
        return f"{self.pieces[0].source.key}@{self.pieces[0].start}"

    @property
    def disk_bytes(self) -> int:
        """Its share of the input on disk."""
        return sum(piece.disk_bytes for piece in self.pieces)


def find_sources(inputs: Sequence[Path]) -> list[Source]:
    """The text files that files, folders (in depth, without hidden files) and globs name, in fixed order.

    Raises:
        ConfigError: nothing is there, or a file's suffix is not one of text.
    """
    sources = [
        Source(path, f"{number}/{relative}", path.stat().st_size)
        for number, given in enumerate(inputs)
        for relative, path in sorted(_files_of(given))
    ]
    if not any(source.size for source in sources):
        raise ConfigError(f"input: {' '.join(map(str, inputs))} holds no text; give files with text in them")
    return sources


def _files_of(given: Path) -> Iterator[tuple[str, Path]]:
    """(path relative to the input, path) of every file an input names."""
    if given.is_file():
        root, found = given.parent, [given]
    elif given.is_dir():
        root, found = given, [path for path in given.rglob("*") if path.is_file()]
    else:
        steps = next((n for n, part in enumerate(given.parts) if any(sign in part for sign in "*?[")), 0)
        root = Path(*given.parts[:steps])
        found = [path for path in root.glob(str(Path(*given.parts[steps:]))) if path.is_file()]
    if not found:
        raise ConfigError(f"input: {given} names no file; give text files, folders of them, or a quoted glob")
    for path in found:
        relative = path.relative_to(root)
        if any(part.startswith(".") for part in relative.parts):
            continue
        if not _is_text(path):
            raise ConfigError(
                f"input: {path} does not look like text: its suffix is not .txt or none, perhaps with .gz, "
                ".bz2 or .xz after it; take it away, or name the right files by a quoted glob"
            )
        yield relative.as_posix(), path


def _is_text(path: Path) -> bool:
    name = path.with_suffix("") if path.suffix in _COMPRESSED_SUFFIXES else path
    return name.suffix in _TEXT_SUFFIXES


def read_chunks(sources: Sequence[Source], budget: int, boundary: Boundary) -> Iterator[Chunk]:
    """Cuts the files into chunks of about `budget` bytes of text, one at a time in memory.

    Raises:
        ConfigError: a file is unreadable or its compressed data damaged.
    """
    number, size = 0, 0
    held: list[Piece] = []
    for source in sources:
        for piece in _cut(source, budget, boundary):
            if held and size + piece.size > budget:
                yield Chunk(number, tuple(held))
                number, size = number + 1, 0
                held = []
            held.append(piece)
            size += piece.size
    if held:
        yield Chunk(number, tuple(held))


def _cut(source: Source, budget: int, boundary: Boundary) -> Iterator[Piece]:
    with _opened(source.path) as raw:
        opener = _opener(raw)
        try:
            if opener is None:
                yield from _cut_plain(source, raw, budget, boundary)
            else:
                yield from _cut_compressed(source, raw, opener(raw), budget, boundary)
        except _DAMAGED as error:
            raise ConfigError(f"input: {source.path} cannot be read to its end ({error}); replace the file") from None


def _cut_plain(source: Source, file: BinaryIO, budget: int, boundary: Boundary) -> Iterator[Piece]:
    start = 0
    markup, end_of_document = _format_of(file.read(_BEGINNING), boundary)
    while start < source.size:
        end = source.size
        if end_of_document is not None and start + budget < source.size:
            file.seek(start + budget)
            end = min(start + budget + _seek_boundary(file, end_of_document), source.size)
        yield Piece(source, start, end, markup, disk_bytes=end - start)
        start = end


def _seek_boundary(file: BinaryIO, end_of_document: re.Pattern[bytes]) -> int:
    """Bytes from the file's position to the end of the first boundary, or to the end of the file."""
    seen = bytearray()
    while block := file.read(_BLOCK):
        overlap = max(0, len(seen) - _OVERLAP)
        seen += block
        if found := end_of_document.search(seen, overlap):
            return found.end()
    return len(seen)


def _cut_compressed(source: Source, raw: BinaryIO, file: BinaryIO, budget: int, boundary: Boundary) -> Iterator[Piece]:
    step = max(_BEGINNING, min(_BLOCK, budget))
    held = bytearray(file.read(step))
    markup, end_of_document = _format_of(held[:_BEGINNING], boundary)
    start, disk_start, searched = 0, 0, budget
    while True:
        while end_of_document and len(held) > budget and (found := end_of_document.search(held, searched)):
            end = start + found.end()
            disk_end = raw.tell() * end // (start + len(held))  # raw is read ahead of the text
            yield Piece(source, start, end, markup, disk_end - disk_start, bytes(held[: found.end()]))
            del held[: found.end()]
            start, disk_start, searched = end, disk_end, budget
        block = file.read(step)
        if not block:
            break
        searched = max(budget, len(held) - _OVERLAP)
        held += block
    if held:
        yield Piece(source, start, start + len(held), markup, source.size - disk_start, bytes(held))


def _format_of(beginning: bytes | bytearray, boundary: Boundary) -> tuple[bool, re.Pattern[bytes] | None]:
    """Whether a file is WikiExtractor's, and what ends its documents (None: only the file's end)."""
    if beginning.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"<doc "):
        return True, _DOC_END
    return False, _BLANK_LINE if boundary == "blank_line" else None


def documents(piece: Piece, boundary: Boundary) -> Iterator[bytes]:
    """The documents of a piece, without their markup and the white space around them.

    A WikiExtractor document may be empty; elsewhere an empty document cannot be told from a longer gap.
    """
    text = piece.read()
    if piece.start == 0:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    if piece.wiki_markup:
        for part in _DOC_END.split(text):
            if part := part.strip():
                yield _DOC_START.sub(b"", part, count=1).strip()
    else:
        for part in _BLANK_LINE.split(text) if boundary == "blank_line" else [text]:
            if part := part.strip():
                yield part


def sample_pieces(sources: Sequence[Source], size: int, boundary: Boundary) -> Iterator[Piece]:
    """Text of about `size` bytes, from the beginnings of files spread evenly over the corpus.

    Raises:
        ConfigError: as `read_chunks`.
    """
    files = sources[:: max(1, len(sources) // _SAMPLED_FILES)]
    for source in files:
        yield from islice(_cut(source, max(1, size // len(files)), boundary), 1)


def sample_documents(sources: Sequence[Source], size: int, boundary: Boundary) -> Iterator[str]:
    """The documents of such a sample."""
    for piece in sample_pieces(sources, size, boundary):
        yield from (document.decode(errors="replace") for document in documents(piece, boundary))


def _opener(file: BinaryIO) -> Callable[[BinaryIO], Any] | None:
    beginning = file.read(6)
    file.seek(0)
    return next((opener for magic, opener in _OPENERS.items() if beginning.startswith(magic)), None)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"input: {path} cannot be opened ({error.strerror}); check that it is there") from None
