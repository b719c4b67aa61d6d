"""Words of any language: runs of letters, marks and digits.

Where a script puts no spaces between words (Chinese, kana, Thai, Khmer ...), a line may break before any letter: each
letter with its marks counts as a word. The marks are those of all scripts; the vowels of Indic scripts are among them.
"""

from functools import cache

import numpy as np
import regex

WITHOUT_SPACES = r"[[\p{lb=SA}\p{lb=ID}\p{lb=CJ}\p{lb=NS}\u3035]&&[\p{L}\p{M}]]"  # U+3035: half a Japanese repeat mark
"""Letters and marks of scripts without spaces between words, as a set of the `regex` module's version 1."""
IN_WORDS = r"[\p{L}\p{M}\p{N}]"
_MARK, _ALONE, _ANY = 1, 2, 4  # bits of a kind of character


def words(text: str) -> list[str]:
    """Returns the words of a text, in order."""
    inside, first = word_starts(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4"))
    starts = np.flatnonzero(first)
    ends = np.flatnonzero(inside & np.append(~inside[1:] | first[1:], True)[: len(inside)]) + 1
    return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def word_starts(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for the code points of a text, which belong to words, and which of them begin one; both bool."""
    kinds = _kinds()[codes]
    before, inside = np.append(np.uint8(0), kinds[:-1]), kinds > 0
    return inside, inside & ((before == 0) | ((kinds & _MARK == 0) & ((kinds | before) & _ALONE > 0)))


@cache
def _kinds() -> np.ndarray:
    """Returns the kind of every code point: 0 if it is in no word."""
    every, kinds = "".join(map(chr, range(0x110000))), np.zeros(0x110000, np.uint8)
    for characters, bits in ((IN_WORDS, _ANY), (r"\p{M}", _MARK), (WITHOUT_SPACES, _ALONE)):
        for run in regex.finditer(f"(?V1){characters}+", every):
            kinds[run.start() : run.end()] |= bits
    return kinds
