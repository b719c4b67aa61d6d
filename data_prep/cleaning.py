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
from functools import lru_cache, partial
from typing import Any

import regex

LONGEST_LINE = 100_000  # characters; longer ones are not paragraphs and would cost Punkt and the tokenizer memory
# All but tab and the characters that end a line or page: line feed, \v, \f, carriage return, \x1c to \x1e, \x85.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
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
# Prefixes of links that are not text in any wiki: of files, categories and the like ([[:Category:...]] is text), and of
# languages, by the codes of all Wikipedias: https://meta.wikimedia.org/wiki/List_of_Wikipedias
_ASIDES = frozenset(
    re.findall(
        r"\S+",
        """
file image media category wikipedia project template
aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar bat-smg bbc
bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca cbk-zam cdo ce ceb ch cho chr chy
ckb co cr crh cs csb cu cv cy da dag de dga din diq dsb dtp dty dv dz ee el eml en eo es et eu ext fa fat ff fi fiu-vro
fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw gu guc gur guw gv ha hak haw he hi hif ho hr
hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is it iu ja jam jbo jv ka kaa kab kaj kbd kbp kcg kg kge ki kj
kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky la lad lb lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv lzh mad
mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw mo mos mr mrj ms mt mus mwl my myv mzn na nah nan nap nb nds nds-nl ne
new ng nia nl nn no nov nqo nr nrm nso nup nv ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl pms pnb pnt ps
pt pwn qu rm rmy rn ro roa-rup roa-tara rsk ru rue rup rw sa sah sat sc scn sco sd se sg sgs sh shi shn shy si simple sk
skr sl sm smn sn so sq sr srn ss st stq su sv sw syl szl szy ta tay tcy tdd te tet tg th ti tig tk tl tly tn to tpi tr
trv ts tt tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue za zea zgh zh
zh-classical zh-min-nan zh-yue zu
""",
    )
)
_MEDIA = re.compile(
    r"(?i)\.(png|jpe?g|svg|gif|tiff?|webp|xcf|pdf|djvu|og[agv]|opus|wav|flac|mp[34]|mid|web[am]|mpe?g)\s*\Z"
)
_PREFIX = re.compile(r"\A\s*([^:]+?)\s*:")
# Bold and italic marks, switches (__NOTOC__, in any language), and markup that the parser leaves as text if unbalanced.
_LEFT_OVER = regex.compile(
    r"(?V1)'{2,}|__[\p{L}--\p{Ll}][[\p{L}\p{M}_]--\p{Ll}]*__|<ref\b[^<>]*(?:/>|>[^<]*</ref>)|^[ \t]*(?:\{\||\||!).*\n?",
    regex.M,
)
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


def clean(content: bytes, asides: frozenset[str] | None = None) -> CleanedText:
    """Returns a document decoded, without wiki markup and control characters, normalized to NFC, its long lines cut.

    For wikitext, `asides` are the wiki's own names of the namespaces whose links are not text, in lower case.
    """
    cleaned = decode(content)
    if asides is not None:
        cleaned.keep(plain_text(cleaned.text, asides), "markup")
    cleaned.keep(cleaned.text.replace("\ufeff", ""), "byte_order_mark")
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


def plain_text(wikitext: str, asides: frozenset[str] = frozenset()) -> str:
    """Returns the running text of wikitext: no templates, tables, references, files, categories, comments."""
    text = "".join(map(partial(_section_text, asides=_ASIDES | asides), _sections(wikitext)))
    text = _EMPTY_BRACKETS.sub("", _LEFT_OVER.sub("", text))
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


def _section_text(section: str, asides: frozenset[str]) -> str:
    import mwparserfromhell

    try:
        return _render(mwparserfromhell.parse(section, skip_style_tags=True), asides)
    except (
        mwparserfromhell.parser.ParserError,
        RecursionError,
    ):  # a bug in the parser; nesting deeper than Python's limit
        return ""


def _render(code: Any, asides: frozenset[str]) -> str:
    return "".join(_render_node(node, asides) for node in code.nodes)


def _render_node(node: Any, asides: frozenset[str]) -> str:
    match type(node).__name__:
        case "Text":
            return str(node.value)
        case "Tag":
            name = str(node.tag).strip().lower()
            if name == "br":
                return "\n"
            return "" if name in _DROPPED_TAGS or node.contents is None else _render(node.contents, asides)
        case "Wikilink" if (
            (prefix := "".join(_PREFIX.findall(str(node.title))).replace("_", " ").lower()) not in asides
            and not (prefix and _MEDIA.search(str(node.title)))  # a file, by a name of its namespace that no dump lists
        ):
            return _render(node.title, asides).lstrip(":") if node.text is None else _render(node.text, asides)
        case "ExternalLink" if node.title is not None:
            return _render(node.title, asides)
        case "ExternalLink" if not node.brackets:
            return str(node.url)
        case "HTMLEntity":
            try:
                return str(node.normalize())
            except (ValueError, OverflowError):  # a number that is not a character
                return str(node)
        case "Heading":
            return _render(node.title, asides).strip()
    return ""  # every other node (template, argument, comment) is dropped
