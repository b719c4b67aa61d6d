"""Splits documents into sentences with a Punkt model (Kiss and Strunk, 2006): NLTK's result, but many times faster.

The model is given as a folder in NLTK's `punkt_tab` form, or trained on a sample of the corpus. The end of a line
always ends a sentence, as in ELECTRA's builder, which reads line by line. Punkt knows no other marks than `.?!`.

The result is that of NLTK's PunktSentenceTokenizer, except after thousands of characters without a space. Only a full
stop, question or exclamation mark before closing punctuation, or before white space and another word, may end a
sentence. One compiled pattern finds these marks. Most words before them are neither abbreviations nor numbers and end a
sentence regardless of the next word; NLTK decides the others, once for each pair of words.
"""

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import regex

from electra_sampler.foundation.config import ConfigError, explained
from electra_sampler.foundation.files import write_if_other

Sentences = Literal["punkt", "marks", "line"]
PUNKT_NAME = "punkt"  # name of the model's folder inside a shard folder

MARKS = regex.compile(r"(?V1)[\p{Sentence_Break=STerm}--?!]")
"""Marks that always end a sentence, such as 。, ؟, ۔, ।, ። and full-width ？; not the marks that Punkt decides."""
_AFTER_MARKS = regex.compile(rf"({MARKS.pattern}[\p{{Sentence_Break=STerm}}\p{{Close_Punctuation}}\p{{Pf}}\"']*)\s*")

_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")

# NLTK's PunktLanguageVars. \s is White_Space, without the separators 1C to 1F that `re` includes.
_SPACE = r"[^\S\x1c-\x1f]"
_QUOTES = "‘’“”«»"
_NOT_IN_WORDS = rf"[)\";}}\]*:@'({{\[{_QUOTES}?!]"
_MARK = re.compile(rf"[.?!](?={_NOT_IN_WORDS}|{_SPACE}+([\S\x1c-\x1f]+))")
_CLOSERS = frozenset("\"')]}" + _QUOTES)
_CLOSING = re.compile(rf"([\"')\]}}{_QUOTES}]+)(?:{_SPACE}+|(?=--)|$)")
_OPENING = '"(['  # characters that are never part of the word after them
_REMEMBERED, _LONGEST = 1 << 16, 128  # cached decisions, and the longest text of one in characters: at most about 20 MB
_UNSPACED = 1 << 12  # characters without a space, too many to be words: NLTK would take quadratic time


@cache
def _nltk() -> Any:
    """Returns NLTK's Punkt module; without SciPy and scikit-learn, which it does not need and take 2 s to import."""
    absent: dict[str, Any] = {name: None for name in ("scipy", "sklearn") if name not in sys.modules}
    sys.modules.update(absent)
    try:
        from nltk.tokenize import punkt
    finally:
        for name in absent:
            del sys.modules[name]
    return punkt


@dataclass
class PunktModel:
    """A trained model, with the names and values of NLTK's PunktParameters, whose place it takes."""

    abbrev_types: set[str] = field(default_factory=set)
    collocations: set[tuple[str, str]] = field(default_factory=set)
    sent_starters: set[str] = field(default_factory=set)
    ortho_context: Counter[str] = field(default_factory=Counter)
    """Flags of each word; of unknown words 0, as NLTK expects."""

    @classmethod
    def trained(cls, texts: Iterable[str]) -> "PunktModel":
        """Trains a model by Punkt's unsupervised method (Kiss and Strunk, 2006), with NLTK's defaults."""
        return cls(**vars(_nltk().PunktTrainer("\n\n".join(texts)).get_params()))

    def sha256(self) -> str:
        """Checksum that identifies the model by its content."""
        return hashlib.sha256("\n\n".join(self.files().values()).encode()).hexdigest()

    def files(self) -> dict[str, str]:
        """The model as files by name in NLTK's `punkt_tab` form, sorted so that equal models give equal files."""
        return {
            "abbrev_types.txt": "\n".join(sorted(self.abbrev_types)),
            "collocations.tab": "\n".join(sorted("\t".join(pair) for pair in self.collocations)),
            "ortho_context.tab": "\n".join(f"{word}\t{flags}" for word, flags in sorted(self.ortho_context.items())),
            "sent_starters.txt": "\n".join(sorted(self.sent_starters)),
        }


class Punkt:
    """Splits lines into sentences with a Punkt model."""

    def __init__(self, model: PunktModel) -> None:
        self._undecided = model.abbrev_types | {first for first, _ in model.collocations}
        self._ask: Callable[[str], bool] = _nltk().PunktSentenceTokenizer(model).text_contains_sentbreak
        self._ask_once = lru_cache(_REMEMBERED)(self._ask)

    def sentences(self, line: str) -> list[str]:
        """Returns the sentences of one line of text, without the white space between them."""
        sentences = []
        start, line_end = 0, len(line.rstrip())
        for (end, following), (next_end, _) in pairwise([*self._ends(line), (line_end, line_end)]):
            if line[following] in _CLOSERS and (closing := _CLOSING.match(line, following, next_end)):
                sentences.append(line[start : closing.end(1)])
                start = closing.end()
            else:
                if start < end:
                    sentences.append(line[start:end])
                start = following
        if start < line_end:
            sentences.append(line[start:line_end])
        return sentences

    def _ends(self, line: str) -> Iterator[tuple[int, int]]:
        """Yields each sentence's end and the next one's start; `sentences` then moves closing punctuation."""
        for start, end, match in _candidates(line):
            stem = line[start : end - 1].lower().lstrip(_OPENING)
            following = match.start(1) if match[1] else end
            part = stem.rpartition("-")[2]  # NLTK looks up "a-b", and "b" alone
            is_word = len(part) > 1 and stem.replace("-", "").isalpha() and self._undecided.isdisjoint((part, stem))
            if not (is_word or match[0] != "." or stem[-1:] in _CLOSERS or end - start > _UNSPACED):
                text = line[start : match.end(1) if match[1] else end + 1]
                if line[start : end - 1].isdecimal():
                    text = "0" + text[end - 1 - start :]  # to NLTK all numbers are one word
                if not (self._ask_once(text) if len(text) <= _LONGEST else self._ask(text)):
                    continue
            yield end, following


def _candidates(line: str) -> list[tuple[int, int, re.Match[str]]]:
    """Returns (start of the word before it, end of the mark, match) for each mark that may end a sentence.

    If no space separates several marks, only the last counts, unless the first has no word before it.
    """
    found: list[tuple[int, int, re.Match[str]]] = []
    spaced = line.replace("\t", " ")
    start, mark = 0, 0  # of the word before the latest mark; the latest mark
    for match in _MARK.finditer(line):
        next_mark = match.start()
        space = spaced.rfind(" ", mark, next_mark)
        if space > mark:
            start = space + 1
        elif found and mark != start:
            found.pop()
        found.append((start, next_mark + 1, match))
        mark = next_mark
    return found


def split_sentences(document: str, punkt: Punkt | None, *, marks: bool = False) -> list[str]:
    """Returns the sentences of a document, in order; only white space is lost.

    The end of a line always ends a sentence; without Punkt, nothing else does. With `marks`, the sentence-ending marks
    of other scripts and the closing punctuation after them do, too.
    """
    if punkt is None:
        return [line for line in map(str.strip, document.splitlines()) if line]
    if marks:
        document = _AFTER_MARKS.sub(r"\1\n", document)
    return [sentence for line in document.splitlines() for sentence in punkt.sentences(line)]


def find_model(path: Path) -> Path:
    """Returns the folder with the files of a Punkt model: `path`, or the English model in an nltk_data folder.

    Raises:
        ConfigError: there is no model in any of these places.
    """
    for folder in (path, path / "english", path / "tokenizers" / "punkt_tab" / "english"):
        if all((folder / name).is_file() for name in _FILES):
            return folder
    raise ConfigError(f"punkt: {path} holds no Punkt model; give a folder with {', '.join(_FILES)}")


def sample_by_content(texts: Sequence[str], size: int) -> list[str]:
    """Returns a sample of `size` characters, its last text cut; it depends on the texts' content, not their order."""
    chosen: list[str] = []
    for text in sorted(texts, key=lambda text: hashlib.blake2b(text.encode("utf-8", "surrogatepass")).digest()):
        chosen.append(text[:size])
        size -= len(chosen[-1])
        if not size:
            break
    return chosen


def load_model(folder: Path) -> PunktModel:
    """Reads the four files of a Punkt model.

    Raises:
        ConfigError: a file is missing or malformed.
    """
    with explained(f"punkt: {folder} is not a Punkt model", "give the folder of a Punkt model", (OSError, ValueError)):
        rows = {
            name: [line.split("\t") for line in (folder / name).read_text("utf-8").split("\n") if line]
            for name in _FILES
        }
        return PunktModel(
            abbrev_types={word for (word,) in rows["abbrev_types.txt"]},
            collocations={(first, second) for first, second in rows["collocations.tab"]},
            sent_starters={word for (word,) in rows["sent_starters.txt"]},
            ortho_context=Counter({word: int(flags) for word, flags in rows["ortho_context.tab"]}),
        )


def save_model(model: PunktModel, folder: Path) -> None:
    """Writes a Punkt model as the four files that `load_model` reads."""
    for name, content in model.files().items():
        write_if_other(folder / name, content.encode())
