"""Clean-up of a document's text, every change counted.

A character counts in the decoded text: what is taken away is counted by reason, so that characters
read = characters kept + characters removed. Then comes Unicode's NFC, which writes the same characters in fewer
or more code points, and is counted in documents; and the breaking of lines too long for a sentence splitter.
"""

import re
import sys
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache

from data_prep.wikitext import pieces, plain_text

LONGEST_LINE = 100_000  # characters; a longer one is no paragraph, and would be one item to Punkt and the tokenizer
# Without tab, and without what ends a line or a page: line feed, \v, \f, carriage return, \x1c to \x1e, \x85.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
_BYTE_ORDER_MARK = "\ufeff"


@dataclass
class Cleaned:
    """A clean text and what was done to get it.

    Attributes:
        read: characters before. removed: characters taken away, by reason.
        invalid_utf8: malformed byte sequences, each replaced by U+FFFD, the first at byte `first_invalid`.
        normalized: whether NFC changed anything. cut_lines: line ends put in.
    """

    text: str
    read: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    invalid_utf8: int = 0
    first_invalid: int | None = None
    normalized: bool = False
    cut_lines: int = 0

    @property
    def kept(self) -> int:
        """Characters that were read and not removed."""
        return self.read - sum(self.removed.values())

    def keep(self, text: str, reason: str) -> None:
        """Goes on with `text`, which lacks some of the characters."""
        if removed := len(self.text) - len(text):
            self.removed[reason] = removed
        self.text = text


def clean(content: bytes, *, wikitext: bool = False) -> Cleaned:
    """The text of a document's bytes: decoded, without wiki markup and control characters, in NFC."""
    cleaned = decode(content)
    text = cleaned.text
    if wikitext:
        cleaned.keep(text := plain_text(text), "markup")
    if _BYTE_ORDER_MARK in text:
        cleaned.keep(text := text.replace(_BYTE_ORDER_MARK, ""), "byte_order_mark")
    if "\r" in text:
        cleaned.keep(text := text.replace("\r\n", "\n"), "carriage_return")
        cleaned.text = text = text.replace("\r", "\n")
    if _CONTROL.search(text):
        cleaned.keep(text := _CONTROL.sub("", text), "control")
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        cleaned.text = unicodedata.normalize("NFC", _long_runs().sub(_in_order, text))
        cleaned.normalized = True
    if len(cleaned.text) > LONGEST_LINE:
        lines = cleaned.text.split("\n")
        cut = [piece for line in lines for piece in pieces(line, LONGEST_LINE, " ", least=1)]
        cleaned.text, cleaned.cut_lines = "\n".join(cut), len(cut) - len(lines)
    return cleaned


def decode(content: bytes) -> Cleaned:
    """The text of a document's bytes, not cleaned."""
    try:
        text = content.decode()
        return Cleaned(text, len(text))
    except UnicodeDecodeError as error:
        text = content.decode(errors="replace")
        invalid = text.count("\ufffd") - content.count("\ufffd".encode())
        return Cleaned(text, len(text), invalid_utf8=invalid, first_invalid=error.start)


def _in_order(run: re.Match[str]) -> str:
    """A run of combining marks in canonical order.

    Python's NFC takes time that grows with the square of a run out of order; which form of equivalent text it is given
    makes no difference to it.
    """
    marks = "".join(unicodedata.normalize("NFD", mark) for mark in run[0])
    return "".join(sorted(marks, key=unicodedata.combining))


@lru_cache(maxsize=1)
def _long_runs() -> re.Pattern[str]:
    """More combining marks than any language has on a letter: Unicode's Stream-Safe Text Format allows 30."""
    marks = [
        chr(code)
        for code in range(0x300, sys.maxunicode + 1)
        if unicodedata.combining(chr(code)) or unicodedata.decomposition(chr(code))
    ]
    moved = [mark for mark in marks if unicodedata.combining(unicodedata.normalize("NFD", mark)[0])]
    return re.compile(f"[{''.join(moved)}]{{31,}}")
