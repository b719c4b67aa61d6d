"""How a file's text becomes documents: plain text, WikiExtractor's output, JSON lines, a MediaWiki XML dump.

The format is told by the file's beginning, JSON lines also by the name. Each has a pattern that ends a document,
where a file may be cut. What stands around a text (tags, JSON, XML, white space) is no part of its document; a
document that is not to be used says why, so that the books can count it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from data_prep.unpacking import SUFFIXES, not_text
from data_prep.wikitext import page_text
from foundation.config import ConfigError

Boundary = Literal["blank_line", "file"]

BEGINNING = 4096  # bytes that tell a file's format
LONGEST_DOCUMENT = 1 << 24  # bytes; a longer one is cut at a line's end, so that memory stays bounded
LONGEST_PAGE = 1 << 21  # bytes of wikitext; MediaWiki's $wgMaxArticleSize, and its parser needs the most memory
LONGEST_RECORD = (
    1 << 25
)  # bytes; a JSON object or XML page cannot be cut before it is read, and takes up to 24 times that
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PARQUET = b"PAR1"  # a Parquet file's first bytes, and its last
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16
_JSON_SUFFIXES = {".json", ".jsonl", ".ndjson"}
_JSON_OBJECT = re.compile(rb'\{\s*"')
_MEDIAWIKI = re.compile(rb"(<\?xml[^>]*>\s*)?<mediawiki\b")
_DOC_START = re.compile(rb"<doc [^>]*>")
_PAGE_START = b"<page>"


class Format(StrEnum):
    """What a file holds."""

    TEXT = "text"
    ONE_DOCUMENT = "one document"
    WIKI_EXTRACTOR = "WikiExtractor"
    JSON_LINES = "JSON lines"
    MEDIAWIKI = "MediaWiki XML"
    ROWS = "rows"


END_OF_DOCUMENT = {
    Format.TEXT: re.compile(rb"\n[ \t\r\f\v]*\n"),
    Format.ONE_DOCUMENT: re.compile(rb"(?!)"),  # never
    Format.WIKI_EXTRACTOR: re.compile(rb"</doc>[ \t\r]*\n?"),
    Format.JSON_LINES: re.compile(rb"\n"),
    Format.MEDIAWIKI: re.compile(rb"</page>\s?"),
}


RECORD_FORMATS = (Format.JSON_LINES, Format.MEDIAWIKI, Format.ROWS)  # a document cannot be cut before it is read


@dataclass(frozen=True)
class Reading:
    """How the user wants files read: what ends a document in plain text, and which column or key holds the text."""

    boundary: Boundary = "blank_line"
    text_column: str = "text"


@dataclass(frozen=True)
class Document:
    """A document's bytes; `place` is where they stand in the unpacked file (bytes; of the text, in rows).

    `reason` says why it is not to be used, if so. `cut`: it goes on in the next document.
    """

    content: bytes
    place: int
    reason: str | None = None
    wikitext: bool = False
    cut: bool = False

    @property
    def digest(self) -> bytes:
        """8 bytes that tell its content, whatever mark the file began with and however it ends lines."""
        content = self.content.removeprefix(BYTE_ORDER_MARK).replace(b"\r\n", b"\n")
        return hashlib.blake2b(content, digest_size=8).digest()


def format_of(path: Path, beginning: bytes, boundary: Boundary) -> Format:
    """What a file holds, by its first `BEGINNING` bytes of text.

    Raises:
        ConfigError: it is nothing that can be read.
    """
    if beginning.startswith(_WIDE_MARKS):
        raise ConfigError(f"input: {path} is not UTF-8: it begins as UTF-16 does; convert it (iconv -t UTF-8)")
    if what := not_text(beginning):
        raise ConfigError(f"input: {path} holds {what} data in place of text; unpack, convert or replace it")
    start = beginning.removeprefix(BYTE_ORDER_MARK).lstrip()
    suffix = (path.with_suffix("") if path.suffix in SUFFIXES else path).suffix
    if start.startswith(b"<doc "):
        return Format.WIKI_EXTRACTOR
    if _MEDIAWIKI.match(start):
        return Format.MEDIAWIKI
    if suffix == ".parquet" or start.startswith(PARQUET):
        raise ConfigError(f"input: {path} is not a Parquet file as it lies on disk; unpack or replace it")
    if suffix.startswith(".xml") and start:
        raise ConfigError(f"input: {path} does not begin as a MediaWiki dump does (<mediawiki ...>); give another file")
    if suffix in _JSON_SUFFIXES or (not suffix and _JSON_OBJECT.match(start)):
        if start and not start.startswith(b"{"):
            raise ConfigError(f"input: {path} is not JSON lines: it begins with no {{; give one object a line")
        return Format.JSON_LINES
    return Format.TEXT if boundary == "blank_line" else Format.ONE_DOCUMENT


def parse(form: Format, text: bytes, place: int, reading: Reading) -> Iterator[Document]:
    """The documents of text cut at ends of documents, none much longer than `LONGEST_DOCUMENT`.

    A WikiExtractor document or a JSON text may be empty; in plain text an empty one is but a longer gap.

    Raises:
        ConfigError: a file's first JSON object has no `text_column`.
    """
    if place == 0 and form not in (Format.TEXT, Format.ONE_DOCUMENT):  # there the clean-up counts it
        mark = len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0
        text, place = text[mark:], mark
    if form is Format.JSON_LINES:
        found = _json_documents(text, place, reading.text_column)
    else:
        found = _PARSERS[form](text, place)
    for document in found:
        yield from split_long(document)


def split_long(document: Document) -> Iterator[Document]:
    """The document, in several parts where it is too long."""
    limit = LONGEST_PAGE if document.wikitext else LONGEST_DOCUMENT
    start = 0
    while len(document.content) - start > limit:
        end = start + cut_point(document.content[start : start + limit])
        yield replace(document, content=document.content[start:end], place=document.place + start, cut=True)
        start = end
    yield replace(document, content=document.content[start:], place=document.place + start) if start else document


def cut_point(text: bytes) -> int:
    """Where to cut text that goes on: at the last line's end, at white space, or else between two characters."""
    end = text.rfind(b"\n") + 1 or text.rfind(b" ") + 1 or len(text)
    if end == len(text):
        start_of_last = next((n for n in range(1, 5) if text[-n] & 0xC0 != 0x80), len(text))
        end -= start_of_last if start_of_last < len(text) else 0
    return end


def _text_documents(parts: Iterable[tuple[int, bytes]], place: int) -> Iterator[Document]:
    for start, part in parts:
        if content := part.strip():
            yield Document(content, place + start + len(part.rstrip()) - len(content))


def _wiki_extractor_documents(text: bytes, place: int) -> Iterator[Document]:
    for start, part in _parts(END_OF_DOCUMENT[Format.WIKI_EXTRACTOR], text):
        if content := part.strip():
            tag = _DOC_START.match(content)
            text = content[tag.end() :].lstrip() if tag else content
            yield Document(text, place + start + len(part.rstrip()) - len(text))


def _pages(text: bytes, place: int) -> Iterator[Document]:
    """Articles as wikitext. What stands outside pages, such as the names of a dump's namespaces, is no document."""
    for start, part in _parts(END_OF_DOCUMENT[Format.MEDIAWIKI], text):
        begin = part.find(_PAGE_START)
        if begin >= 0:
            content, reason = page_text(part[begin:])
            whole = start + len(part) < len(text)
            yield Document(content, place + start + begin, reason if whole else "unfinished_page", wikitext=True)


def _json_documents(text: bytes, place: int, column: str) -> Iterator[Document]:
    for start, line in _parts(END_OF_DOCUMENT[Format.JSON_LINES], text):
        if not (line := line.strip()):
            continue
        try:
            # malformed UTF-8 and lone \ud800 alike pass through as surrogates, for the clean-up to count
            value = json.loads(line.decode("utf-8", "surrogateescape"))[column]
        except (ValueError, TypeError, RecursionError):
            yield Document(line, place + start, "malformed_record")
        except KeyError:
            if place + start <= len(BYTE_ORDER_MARK):
                raise ConfigError(f"text_column: {column} is not among the keys of {line[:80]!r}; name one") from None
            yield Document(line, place + start, "no_text")
        else:
            if isinstance(value, str):
                yield Document(value.encode("utf-8", "surrogatepass").strip(), place + start)
            else:
                yield Document(line, place + start, "no_text")


def _parts(pattern: re.Pattern[bytes], text: bytes) -> Iterator[tuple[int, bytes]]:
    """What stands between the matches, and where."""
    start = 0
    for found in pattern.finditer(text):
        yield start, text[start : found.start()]
        start = found.end()
    yield start, text[start:]


_PARSERS: dict[Format, Callable[[bytes, int], Iterator[Document]]] = {
    Format.TEXT: lambda text, place: _text_documents(_parts(END_OF_DOCUMENT[Format.TEXT], text), place),
    Format.ONE_DOCUMENT: lambda text, place: _text_documents([(0, text)], place),
    Format.WIKI_EXTRACTOR: _wiki_extractor_documents,
    Format.MEDIAWIKI: _pages,
}
