"""How a file's text becomes documents: plain text, WikiExtractor's output, JSON lines, a MediaWiki XML dump.

The format shows in the file's beginning, that of JSON lines also in its name. Each has a pattern that ends a document,
where a file may be cut. What surrounds a text (tags, JSON, XML, white space) is no part of its document; a
document that is not to be used says why, so that the books can count it.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Literal

from data_prep.unpacking import not_text, text_suffix
from data_prep.wikitext import page_text
from foundation.config import ConfigError

Boundary = Literal["blank_line", "file"]

BEGINNING = 4096  # bytes that tell a file's format
LONGEST_DOCUMENT = 1 << 24  # bytes; a longer one is cut at a line's end, so that memory stays bounded
LONGEST_PAGE = 1 << 21  # bytes of wikitext; MediaWiki's $wgMaxArticleSize, and its parser needs the most memory
LONGEST_RECORD = 1 << 25  # bytes; a JSON object or XML page is read whole, and takes up to 24 times that
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PARQUET = b"PAR1"  # a Parquet file's first bytes, and its last
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16
_JSON_SUFFIXES = {".json", ".jsonl", ".ndjson"}
_JSON_OBJECT = re.compile(rb'\{\s*"')
_MEDIAWIKI = re.compile(rb"(<\?xml[^>]*>\s*)?<mediawiki\b")
_DOC_START = re.compile(rb"\A<doc [^>]*>\s*")
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
    """A document's bytes; `place` is their offset in the unpacked file (in bytes; of the text, in rows).

    `reason` says why it is not to be used, if so. `cut`: it continues in the next document.
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
    suffix = text_suffix(path)
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
            raise ConfigError(f"input: {path} is not JSON lines: it begins with no {{; give one object per line")
        return Format.JSON_LINES
    return Format.TEXT if boundary == "blank_line" else Format.ONE_DOCUMENT


def parse(form: Format, text: bytes, place: int, reading: Reading) -> Iterator[Document]:
    """The documents of text cut at ends of documents, none much longer than `LONGEST_DOCUMENT`.

    A WikiExtractor document or a JSON text may be empty; in plain text an empty one is only a longer gap.

    Raises:
        ConfigError: a file's first JSON object has no `text_column`.
    """
    if place == 0 and form not in (Format.TEXT, Format.ONE_DOCUMENT):  # there the clean-up counts it
        mark = len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0
        text, place = text[mark:], mark
    start = 0
    for end in chain(END_OF_DOCUMENT[form].finditer(text), [None]):
        part = text[start : end.start() if end else len(text)]
        if form is Format.MEDIAWIKI:
            document = _page(part, place + start, is_whole=end is not None)
        elif form is Format.JSON_LINES:
            document = _json_document(part.strip(), place + start, reading.text_column)
        else:
            content = part.strip()
            body = _DOC_START.sub(b"", content) if form is Format.WIKI_EXTRACTOR else content
            document = Document(body, place + start + len(part.rstrip()) - len(body)) if content else None
        if document:
            yield from split_long(document)
        start = end.end() if end else len(text)


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
    """Where to cut text that continues: at the last line's end, at white space, or else between two characters."""
    end = text.rfind(b"\n") + 1 or text.rfind(b" ") + 1 or len(text)
    if end == len(text):
        start_of_last = next((n for n in range(1, 5) if text[-n] & 0xC0 != 0x80), len(text))
        end -= start_of_last if start_of_last < len(text) else 0
    return end


def _page(part: bytes, place: int, *, is_whole: bool) -> Document | None:
    """An article as wikitext. What lies outside pages, such as the names of a dump's namespaces, is no document."""
    begin = part.find(_PAGE_START)
    if begin < 0:
        return None
    content, reason = page_text(part[begin:])
    return Document(content, place + begin, reason if is_whole else "unfinished_page", wikitext=True)


def _json_document(line: bytes, place: int, column: str) -> Document | None:
    if not line:
        return None
    try:
        # malformed UTF-8 and lone \ud800 alike pass through as surrogates, for the clean-up to count
        value = json.loads(line.decode("utf-8", "surrogateescape"))[column]
    except (ValueError, TypeError, RecursionError):
        return Document(line, place, "malformed_record")
    except KeyError:
        if place <= len(BYTE_ORDER_MARK):
            raise ConfigError(f"text_column: {column} is not among the keys of {line[:80]!r}; name one") from None
        value = None
    if not isinstance(value, str):
        return Document(line, place, "no_text")
    return Document(value.encode("utf-8", "surrogatepass").strip(), place)
