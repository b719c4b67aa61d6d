"""Extracts the wikitext of pages in a MediaWiki XML dump, and converts it to plain text."""

import html
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

# Tags whose content is not running text: https://en.wikipedia.org/wiki/Help:HTML_in_wikitext
_DROPPED_TAGS = {
    *("table", "ref", "references", "gallery", "math", "chem", "score", "timeline", "hiero", "imagemap", "graph"),
    *("source", "syntaxhighlight", "pre", "code", "templatedata", "categorytree", "inputbox", "mapframe", "maplink"),
}
_PAGE_PARTS = re.compile(rb"<ns>(?P<namespace>-?\d+)</ns>|<redirect\b|<text\b[^<>]*>(?P<text>[^<]*)")
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
        text = html.unescape(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogatepass")
    return text.strip(), reason


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
    """Yields the text in pieces of at most `longest` characters, cut after the last separator where there is one.

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
    """Returns the characters that the parser reads for nothing: from each unclosed markup to its enclosure's end."""
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
