"""Cleans the text of a document and counts every change.

Characters are counted in the decoded text. Removed ones are counted by reason, so that characters read = characters
kept + characters removed. Unicode's NFC follows, which may change the number of code points of the same text and is
therefore counted in documents. Last, lines that are too long for the sentence splitter are broken.
"""

import re
import sys
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache

from data_prep.wikitext import pieces, plain_text

LONGEST_LINE = 100_000  # characters; longer ones are not paragraphs and would cost Punkt and the tokenizer memory
# All but tab and the characters that end a line or page: line feed, \v, \f, carriage return, \x1c to \x1e, \x85.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
_BYTE_ORDER_MARK = "\ufeff"


@dataclass
class Cleaned:
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


def clean(content: bytes, *, wikitext: bool = False) -> Cleaned:
    """Cleans a document: decodes it, removes wiki markup and control characters, and normalizes it to NFC."""
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
    """Decodes a document without cleaning it."""
    try:
        text = content.decode()
        return Cleaned(text, len(text))
    except UnicodeDecodeError:
        text = content.decode(errors="replace")
        invalid = text.count("\ufffd") - content.count("\ufffd".encode())
        return Cleaned(text, len(text), invalid_utf8=invalid)


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
