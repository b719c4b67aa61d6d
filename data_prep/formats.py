"""Splits a file's text into documents: plain text, WikiExtractor's output, JSON lines, a MediaWiki XML dump.

The format is recognized from the file's beginning, and JSON lines also from the name. Each format has a pattern that
ends a document, where a file may be cut. Markup around a text (tags, JSON, XML, white space) is not part of its
document. A document that must not be used carries a reason, so that the build can count it.

In Parquet files, a document is a row. Their reader decompresses a whole page, and a row group may be one page. So row
groups must be small enough for memory.
"""

import hashlib
import html
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import regex

from data_prep.sources import text_suffix
from data_prep.unpacking import not_text, opened, unpacked
from electra_sampler.foundation.config import ConfigError, explained

Boundary = Literal["blank_line", "file"]

BEGINNING = 4096  # bytes that identify a file's format
LONGEST_DOCUMENT = 1 << 24  # bytes; longer ones are cut at a line's end to bound memory
LONGEST_PAGE = 1 << 21  # bytes of wikitext: MediaWiki's $wgMaxArticleSize; the wikitext parser needs the most memory
LONGEST_RECORD = 1 << 25  # bytes; a JSON object or XML page is read whole, which takes up to 24 times its size
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PARQUET = b"PAR1"  # first and last bytes of a Parquet file
_JSON_OBJECT = re.compile(rb'\{\s*"')
_LONE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # escapes of JSON that are no character; not a byte's surrogate
_MEDIAWIKI = re.compile(rb"(<\?xml[^>]*>\s*)?<mediawiki\b")
_DOC_START = re.compile(rb"\A<doc [^>]*>\s*")
_ASIDES = re.compile(rb'<namespace key="(?:-2|4|6|10|14)"[^>]*>([^<]+)<')  # media, project, file, template, category
_PAGE_PARTS = re.compile(rb"<ns>(?P<namespace>-?\d+)</ns>|<redirect\b|<text\b[^<>]*>(?P<text>[^<]*)")
_BATCH = 1 << 22  # bytes of text, and of the file, read at a time
_ROWS = 64  # per batch
_LARGEST_GROUP = 1 << 27  # bytes of text, uncompressed
_TEXT = re.compile(r"(?:dictionary<values=)?(?:large_)?(?:string|binary)(?:_view)?(?:,.*)?")
"""Names of Arrow's types of text. Categories of pandas are stored as dictionaries of text."""


class Format(StrEnum):
    """Input file formats."""

    TEXT = "text"
    ONE_DOCUMENT = "one document"
    WIKI_EXTRACTOR = "WikiExtractor"
    JSON_LINES = "JSON lines"
    MEDIAWIKI = "MediaWiki XML"
    ROWS = "rows"


END_OF_DOCUMENT = {
    Format.TEXT: regex.compile(rb"\n[ \t\r\f\v]*\n"),
    Format.ONE_DOCUMENT: regex.compile(rb"[^\x00-\xff]"),  # never
    Format.WIKI_EXTRACTOR: regex.compile(rb"</doc>[ \t\r]*\n?"),
    Format.JSON_LINES: regex.compile(rb"\n"),
    Format.MEDIAWIKI: regex.compile(rb"</page>\s?"),
}
"""Patterns of the end of a document; `regex` also finds one that has only begun where the text read so far ends."""

RECORD_FORMATS = (Format.JSON_LINES, Format.MEDIAWIKI, Format.ROWS)  # a document cannot be cut before it is read


@dataclass(frozen=True)
class Reading:
    """The user's options for reading files: what ends a document, and the column or key of the text.

    With `file`, a plain text is one document; rows and JSON lines are joined, about 2 MB of them at a time.
    """

    boundary: Boundary = "blank_line"
    text_column: str = "text"


@dataclass(frozen=True)
class Document:
    """The bytes of a document's text.

    Attributes:
        place: byte offset of the text in the decompressed file; for a table, in the joined text of its range's rows.
        reason: why the document must not be used; None if it may be.
        cut: True if the text continues in the next document.
    """

    content: bytes
    place: int
    reason: str | None = None
    wikitext: bool = False
    cut: bool = False

    @property
    def digest(self) -> bytes:
        """8-byte hash of the content, unaffected by a byte order mark and by the kind of line ends."""
        content = self.content.removeprefix(BYTE_ORDER_MARK).replace(b"\r\n", b"\n")
        return hashlib.blake2b(content, digest_size=8).digest()


def format_of(path: Path, beginning: bytes, boundary: Boundary) -> Format:
    """Returns the format of a file, judging by its name and its first `BEGINNING` bytes of text.

    Raises:
        ConfigError: the format is not supported.
    """
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff")):  # its byte order marks
        raise ConfigError(f"input: {path} is UTF-16, expected UTF-8; convert it (iconv -t UTF-8)")
    if what := not_text(beginning):
        raise ConfigError(f"input: {path} holds {what} data instead of text; unpack, convert or replace it")
    start = beginning.removeprefix(BYTE_ORDER_MARK).lstrip()
    suffix = text_suffix(path)
    if start.startswith(b"<doc "):
        return Format.WIKI_EXTRACTOR
    if _MEDIAWIKI.match(start):
        return Format.MEDIAWIKI
    if suffix == ".parquet" or start.startswith(PARQUET):
        raise ConfigError(f"input: {path} is not a Parquet file, or was compressed as a whole; unpack or replace it")
    if suffix.startswith(".xml") and start:
        raise ConfigError(f"input: {path} does not begin with <mediawiki, as a dump must; replace it")
    if suffix in (".json", ".jsonl", ".ndjson") or (not suffix and _JSON_OBJECT.match(start)):
        if start and not re.match(rb"\{[^\S\n]*\S", start):
            raise ConfigError(
                f"input: {path} is not JSON lines: its first line is no object; write one object per line"
            )
        return Format.JSON_LINES
    return Format.TEXT if boundary == "blank_line" else Format.ONE_DOCUMENT


def parse(form: Format, text: bytes, place: int, reading: Reading) -> Iterator[Document]:
    """Yields the documents of a text that was cut at document ends; splits long ones with `split_long`.

    Empty documents are skipped in plain text, where they are only extra blank lines, but not in WikiExtractor's
    output and JSON.

    Raises:
        ConfigError: a file's first JSON object lacks the key `text_column`.
    """
    if place == 0 and form not in (Format.TEXT, Format.ONE_DOCUMENT):  # there cleaning removes the mark
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
            at = place + start + len(part.rstrip()) - len(body)
            if form is Format.WIKI_EXTRACTOR:  # which escapes these three
                body = body.replace(b"&lt;", b"<").replace(b"&gt;", b">").replace(b"&amp;", b"&")
            document = Document(body, at) if content else None
        if document:
            yield from split_long(document)
        start = end.end() if end else len(text)


def joined(records: Iterator[Document]) -> Iterator[Document]:
    """Yields the records that must not be used, as they are, then the others as one document with a line for each."""
    kept = []
    for record in records:
        if record.reason is None:
            kept.append(record)
        else:
            yield record
    if kept:
        yield from split_long(Document(b"\n".join(record.content for record in kept), kept[0].place))


def split_long(document: Document) -> Iterator[Document]:
    """Yields the document, or its pieces if it is longer than `LONGEST_DOCUMENT` (`LONGEST_PAGE` if wikitext)."""
    limit = LONGEST_PAGE if document.wikitext else LONGEST_DOCUMENT
    start = 0
    while len(document.content) - start > limit:
        end = start + cut_point(document.content[start : start + limit])
        yield replace(document, content=document.content[start:end], place=document.place + start, cut=True)
        start = end
    yield replace(document, content=document.content[start:], place=document.place + start) if start else document


def cut_point(text: bytes) -> int:
    """Returns the offset at which to cut text: after the last line end, else the last space, else a character."""
    end = text.rfind(b"\n") + 1 or text.rfind(b" ") + 1 or len(text)
    if end == len(text):
        start_of_last = next((n for n in range(1, 5) if text[-n] & 0xC0 != 0x80), len(text))
        end -= start_of_last if start_of_last < len(text) else 0
    return end


def _page(part: bytes, place: int, *, is_whole: bool) -> Document | None:
    """Returns a page's wikitext as a document; None for text outside pages, such as a dump's list of namespaces."""
    begin = part.find(b"<page>")
    if begin < 0:
        return None
    content, reason = page_text(part[begin:])
    return Document(content, place + begin, reason if is_whole else "unfinished_page", wikitext=True)


@lru_cache
def wiki_asides(path: Path) -> frozenset[str]:
    """Returns a dump's own names of the namespaces whose links are not text, from its <siteinfo>, in lower case."""
    with opened(path) as file:
        beginning = (unpacked(file) or file).read(1 << 16)  # several times as long as a <siteinfo>
    return frozenset(html.unescape(name.decode(errors="replace")).lower() for name in _ASIDES.findall(beginning))


def page_text(page: bytes) -> tuple[bytes, str | None]:
    """Returns the wikitext of a `<page>`'s newest revision, and why it is no article; None for an article."""
    text, reason = b"", None
    for part in _PAGE_PARTS.finditer(page):
        if part["namespace"] not in (None, b"0"):
            reason = "other_namespace"
        elif part[0] == b"<redirect" and reason is None:
            reason = "redirect"
        elif part["text"] is not None:
            text = part["text"]
    if b"&" in text:
        text = html.unescape(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return text.strip(), reason


def _json_document(line: bytes, place: int, column: str) -> Document | None:
    if not line:
        return None
    try:
        # malformed UTF-8 passes through as surrogates, for cleaning to count, and a lone \ud800 as a byte like it
        value = json.loads(line.decode("utf-8", "surrogateescape"))[column]
    except (ValueError, TypeError, RecursionError):
        return Document(line, place, "malformed_record")
    except KeyError:
        if place <= len(BYTE_ORDER_MARK):
            raise ConfigError(f"text_column: {column} is not among the keys of {line[:80]!r}; name one") from None
        value = None
    if not isinstance(value, str):
        return Document(line, place, "no_text")
    return Document(_LONE.sub("\udcff", value).encode("utf-8", "surrogateescape").strip(), place)


def is_table(path: Path) -> bool:
    """True for a Parquet file."""
    with opened(path) as file:
        return file.read(len(PARQUET)) == PARQUET


def group_sizes(path: Path) -> list[int]:
    """Returns the bytes of each row group of a Parquet file, uncompressed, from its footer.

    Raises:
        ConfigError: the file is damaged.
    """
    with _parquet(path) as file:
        return [file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)]


@contextmanager
def _parquet(path: Path, dictionaries: Sequence[str] = ()) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    damage = (OSError, pyarrow.ArrowException)
    with (
        explained(f"input: {path} cannot be read to the end", "replace the file", damage),
        opened(path) as raw,
        parquet.ParquetFile(raw, buffer_size=_BATCH, read_dictionary=dictionaries) as file,
    ):
        yield file


def read_rows(path: Path, start: int, end: int | None, column: str) -> Iterator[bytes | None]:
    """Yields each row's text (None if missing) from the row groups `start` to `end` - 1 of a Parquet file.

    Raises:
        ConfigError: the file cannot be read, has no text column of that name, or a group or text is too large.
    """
    with _parquet(path) as file:
        chunks = _chunks(file, path, column)
    # pyarrow reads no dictionary from them; a text that shares its beginning may be far larger than its page
    is_delta = any(encoding.startswith("DELTA_") for chunk in chunks for encoding in chunk.encodings)
    # as a dictionary: a text that many rows repeat is in memory once
    with _parquet(path, [] if is_delta else [column]) as file:
        for group in range(file.num_row_groups)[start:end]:
            if (size := chunks[group].total_uncompressed_size) > _LARGEST_GROUP:  # pages are decompressed as a whole
                raise ConfigError(
                    f"input: {path} has a row group with {size >> 20:,} MiB of text, expected at most "
                    f"{_LARGEST_GROUP >> 20}: too large for a worker's memory; write the file with smaller row groups "
                    "(row_group_size)"
                )
            for batch in file.iter_batches(1 if is_delta else _ROWS, [group], [column]):
                rows = batch.column(0).dictionary_encode()
                texts = rows.dictionary.cast("binary")  # cleaning decodes them, to count malformed UTF-8
                for place in rows.indices.to_pylist():
                    row = None if place is None else texts[place].as_py()
                    if row is not None and len(row) > LONGEST_RECORD:
                        raise ConfigError(
                            f"input: {path} has a text of {len(row) >> 20:,} MiB, expected at most "
                            f"{LONGEST_RECORD >> 20} MiB: too large for a worker's memory; split or remove it"
                        )
                    yield row


def _chunks(file: Any, path: Path, column: str) -> list[Any]:
    """Returns what the footer of a Parquet file says of a text column, by row group.

    Raises:
        ConfigError: there is no text column of that name, or several.
    """
    columns = [field.name for field in file.schema_arrow if _TEXT.fullmatch(str(field.type))]
    if column not in columns:
        fix = f"name one of its text columns: {', '.join(columns)}" if columns else "it has none at all: replace it"
        raise ConfigError(f"text_column: {path} has no text column named {column}; {fix}")
    if (count := file.schema_arrow.names.count(column)) > 1:
        raise ConfigError(f"text_column: {path} has {count} columns named {column}; rename all but one")
    return [
        chunk
        for group in map(file.metadata.row_group, range(file.num_row_groups))
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema == column
    ]
