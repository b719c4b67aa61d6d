"""Splits documents into sentences with Punkt; the model is given as a folder or trained on a sample of the corpus.

A model's folder holds four text files in NLTK's `punkt_tab` form; `punkt` trains and applies it. The end of a line
always ends a sentence, as in ELECTRA's builder, which reads line by line. Punkt decides about full stops, and knows no
other marks than `.?!`.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import regex

from data_prep.punkt import Punkt, PunktModel
from foundation.config import ConfigError
from foundation.files import write_if_other

Sentences = Literal["punkt", "marks", "line"]

MARKS = regex.compile(r"(?V1)[\p{Sentence_Break=STerm}--?!]")
"""Marks that always end a sentence, such as 。, ؟, ۔, ।, ። and full-width ？; not the marks that Punkt decides."""
_AFTER_MARKS = regex.compile(rf"({MARKS.pattern}[\p{{Sentence_Break=STerm}}\p{{Close_Punctuation}}\p{{Pf}}\"']*)\s*")

_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


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
        if has_model(folder):
            return folder
    raise ConfigError(f"punkt: {path} holds no Punkt model; give a folder with {', '.join(_FILES)}")


def has_model(folder: Path) -> bool:
    """True if a folder has all files of a Punkt model."""
    return all((folder / name).is_file() for name in _FILES)


def sample_by_content(texts: Sequence[str], size: int) -> list[str]:
    """Returns texts of `size` characters in all, the last one cut; their content decides which, not their order."""
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
    try:
        texts = {name: (folder / name).read_text("utf-8") for name in _FILES}
        rows = {name: [line.split("\t") for line in text.split("\n") if line] for name, text in texts.items()}
        return PunktModel(
            abbrev_types={word for (word,) in rows["abbrev_types.txt"]},
            collocations={(first, second) for first, second in rows["collocations.tab"]},
            sent_starters={word for (word,) in rows["sent_starters.txt"]},
            ortho_context={word: int(flags) for word, flags in rows["ortho_context.tab"]},
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"punkt: {folder} is not a Punkt model ({error}); give the folder of a Punkt model") from None


def save_model(model: PunktModel, folder: Path) -> None:
    """Writes a Punkt model as the four files that `load_model` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in model.files().items():
        write_if_other(folder / name, content.encode())
