"""Cleans the text of a document and counts every change.

Characters are counted in the decoded text. Wikitext becomes plain text. Removed characters are counted by reason, so
that characters read = characters kept + characters removed. Unicode's NFC follows. As it may change the number of code
points of the same text, the documents that it changes are counted. Last, lines that are too long for the sentence
splitter are broken.
"""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

LONGEST_LINE = 100_000  # characters; longer ones are not paragraphs and would cost Punkt and the tokenizer memory
# All but tab and the characters that end a line or page: line feed, \v, \f, carriage return, \x1c to \x1e, \x85.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
_BYTE_ORDER_MARK = "\ufeff"
# Tags whose content is not running text: https://en.wikipedia.org/wiki/Help:HTML_in_wikitext
_DROPPED_TAGS = {
    *("table", "ref", "references", "gallery", "math", "chem", "score", "timeline", "hiero", "imagemap", "graph"),
    *("source", "syntaxhighlight", "pre", "code", "templatedata", "categorytree", "inputbox", "mapframe", "maplink"),
}
_BEFORE_HEADING = re.compile(r"^(?==)", re.M)
_LONGEST_SECTION = 1 << 14  # characters; 10 of 2,368 sections of 106 real articles are longer
# Opening and closing markup. Tags that are seldom closed count only if even their > is missing.
_MARKUP = re.compile(
    r"(\{\||\{\{|\[\[|\[(?=https?:|ftp:|mailto:|//)|<!--|<(?!(?:br|hr|wbr|li|d[dt]|t[dhr]|img|link|meta)\b[^<>]*>)[a-z]+)"
    r"|(\|\}(?!\})|\}\}|\]\]?|-->|</[a-z]+|/>)",
    re.I,
)
_CLOSING = {"{|": "|}", "{{": "}}", "[[": "]]", "[": "]", "<!--": "-->"}
_MOST_UNCLOSED = 1 << 18  # characters after unclosed markup, summed by `_unclosed`; at most 6,623 in real sections
_UNCLOSED_SECTION = 512  # characters per piece of a section with more than that
# Links to files, categories and other languages' pages are not text; [[:Category:...]] is.
_LINK_ASIDE = re.compile(r"\s*([a-z]{2,3}(-[a-z-]+)?|file|image|media|category|simple|wikipedia|template)\s*:", re.I)
# Bold and italic marks, switches (__NOTOC__), and markup that the parser leaves as text if it is unbalanced.
_LEFT_OVER = re.compile(r"'{2,}|__[A-Z]+__|<ref\b[^<>]*(?:/>|>[^<]*</ref>)|^[ \t]*(?:\{\||\||!).*\n?", re.M)
_EMPTY_BRACKETS = re.compile(r" ?\([\s,;:]*\)")  # left behind by a dropped template
_BLANK_LINES = re.compile(r"(?<![ \t])[ \t]*\n(?:[ \t*#:;]*\n)+")


@dataclass
class CleanedText:
    """A clean text and the changes that produced it.

    Attributes:
        read: characters before cleaning. removed: characters removed, by reason.
        invalid_utf8: malformed byte sequences, each replaced by U+FFFD.
        normalized: whether NFC changed anything. cut_lines: line breaks inserted.
    """

    text: str
    read: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    invalid_utf8: int = 0
    normalized: bool = False
    cut_lines: int = 0

    @property
    def kept(self) -> int:
        """Characters that were read and not removed."""
        return self.read - sum(self.removed.values())

    def keep(self, text: str, reason: str) -> None:
        """Replaces the text by the shorter `text`; counts the characters lost as removed for `reason`."""
        if removed := len(self.text) - len(text):
            self.removed[reason] = removed
        self.text = text


def clean(content: bytes, *, wikitext: bool = False) -> CleanedText:
    """Returns a document decoded, without wiki markup and control characters, normalized to NFC, its long lines cut."""
    cleaned = decode(content)
    if wikitext:
        cleaned.keep(plain_text(cleaned.text), "markup")
    cleaned.keep(cleaned.text.replace(_BYTE_ORDER_MARK, ""), "byte_order_mark")
    cleaned.keep(cleaned.text.replace("\r\n", "\n"), "carriage_return")
    cleaned.text = cleaned.text.replace("\r", "\n")
    cleaned.keep(_CONTROL.sub("", cleaned.text), "control")
    if not cleaned.text.isascii() and not unicodedata.is_normalized("NFC", cleaned.text):
        cleaned.text = unicodedata.normalize("NFC", _long_runs().sub(_in_order, cleaned.text))
        cleaned.normalized = True
    if len(cleaned.text) > LONGEST_LINE:
        lines = cleaned.text.split("\n")
        cut = [piece for line in lines for piece in pieces(line, LONGEST_LINE, " ", least=1)]
        cleaned.text, cleaned.cut_lines = "\n".join(cut), len(cut) - len(lines)
    return cleaned


def decode(content: bytes) -> CleanedText:
    """Returns a document decoded but not cleaned."""
    text = content.decode(errors="replace")
    return CleanedText(text, len(text), invalid_utf8=text.count("\ufffd") - content.count("\ufffd".encode()))


def _in_order(run: re.Match[str]) -> str:
    """Returns a run of combining marks, sorted into canonical order.

    Python's NFC takes quadratic time on a run that is out of order. The order changes nothing in its result, since both
    forms are equivalent text.
    """
    marks = "".join(unicodedata.normalize("NFD", mark) for mark in run[0])
    return "".join(sorted(marks, key=unicodedata.combining))


@lru_cache(maxsize=1)
def _long_runs() -> re.Pattern[str]:
    """Returns a pattern for runs of over 30 combining marks, Unicode's limit for Stream-Safe text."""
    marks = [
        chr(code)
        for code in range(0x300, sys.maxunicode + 1)
        if unicodedata.combining(chr(code)) or unicodedata.decomposition(chr(code))
    ]
    moved = [mark for mark in marks if unicodedata.combining(unicodedata.normalize("NFD", mark)[0])]
    return re.compile(f"[{''.join(moved)}]{{31,}}")


def plain_text(wikitext: str) -> str:
    """Returns the running text of wikitext: no templates, tables, references, files, categories, comments."""
    text = "".join(map(_section_text, _sections(wikitext)))
    for remainder in (_LEFT_OVER, _EMPTY_BRACKETS):
        text = remainder.sub("", text)
    return _BLANK_LINES.sub("\n\n", text).strip()


def _sections(wikitext: str) -> Iterator[str]:
    """Yields the sections of the wikitext, which begin with headings; too long ones are split at line ends.

    For each unclosed markup, the parser reads on to the end of the section. This takes quadratic time, up to 100
    seconds for 100 kB, so sections with much unclosed markup are cut into small pieces.
    """
    for section in _BEFORE_HEADING.split(wikitext):
        for part in pieces(section, _LONGEST_SECTION, "\n"):
            yield from pieces(part, _UNCLOSED_SECTION, "\n") if _unclosed(part) > _MOST_UNCLOSED else (part,)


def pieces(text: str, longest: int, separator: str, least: int = 0) -> Iterator[str]:
    """Yields the text in pieces of at most `longest` characters, each cut after its last separator, if any.

    Separators among the first `least` characters of a piece do not count.
    """
    start = 0
    while len(text) - start > longest:
        limit = start + longest
        end = text.rfind(separator, start + least, limit) + 1 or limit
        yield text[start:end]
        start = end
    yield text[start:]


def _unclosed(section: str) -> int:
    """Returns how many characters the parser reads in vain: from each unclosed markup to the end of its container."""
    opened: list[tuple[str, int]] = []  # (closing markup expected, offset)
    waiting: Counter[str] = Counter()  # number of open markups per closing markup
    detours = 0
    for found in _MARKUP.finditer(section):
        opening, closing = (part and part.lower() for part in found.groups())
        if opening:
            opened.append((_CLOSING.get(opening) or f"</{opening[1:]}", found.start()))
            waiting[opened[-1][0]] += 1
            continue
        if closing == "/>" and opened and opened[-1][0].startswith("</"):
            closing = opened[-1][0]
        elif closing == "]]" and not waiting["]]"]:
            closing = "]"
        while waiting[closing]:
            wanted, start = opened.pop()
            waiting[wanted] -= 1
            if wanted == closing:
                break
            detours += found.start() - start
    return detours + sum(len(section) - start for _, start in opened)


def _section_text(section: str) -> str:
    import mwparserfromhell

    try:
        return _render(mwparserfromhell.parse(section, skip_style_tags=True))
    except (
        mwparserfromhell.parser.ParserError,
        RecursionError,
    ):  # a bug in the parser; nesting deeper than Python's limit
        return ""


def _render(code: Any) -> str:
    return "".join(map(_render_node, code.nodes))


def _render_node(node: Any) -> str:
    match type(node).__name__:
        case "Text":
            return str(node.value)
        case "Tag":
            name = str(node.tag).strip().lower()
            if name == "br":
                return "\n"
            return "" if name in _DROPPED_TAGS or node.contents is None else _render(node.contents)
        case "Wikilink" if not _LINK_ASIDE.match(str(node.title)):
            return _render(node.title).lstrip(":") if node.text is None else _render(node.text)
        case "ExternalLink" if node.title is not None:
            return _render(node.title)
        case "ExternalLink" if not node.brackets:
            return str(node.url)
        case "HTMLEntity":
            try:
                return str(node.normalize())
            except (ValueError, OverflowError):  # a number that is not a character
                return str(node)
        case "Heading":
            return _render(node.title).strip()
    return ""  # every other node (template, argument, comment) is dropped
