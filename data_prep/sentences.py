"""Sentences of documents by Punkt: a model given as a folder, or trained on a sample of the corpus.

A model's folder holds four text files, NLTK's `punkt_tab` form; NLTK trains it, `punkt` applies it. A line's end
always ends a sentence, as in ELECTRA's builder, which takes line by line.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from data_prep.punkt import Punkt, PunktModel
from foundation.config import ConfigError
from foundation.files import write_if_other

Sentences = Literal["punkt", "line"]

_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


class SentenceSplitter:
    """Cuts documents into sentences.

    Args:
        folder: a Punkt model's four files; None where the text has one sentence per line.

    Raises:
        ConfigError: the folder holds no readable model.
    """

    def __init__(self, folder: Path | None) -> None:
        self._punkt = None if folder is None else Punkt(load_model(folder))

    def split(self, document: str) -> list[str]:
        """The sentences, in order; nothing but white space is lost."""
        if self._punkt is None:
            return [line for line in map(str.strip, document.splitlines()) if line]
        sentences = self._punkt.sentences
        return [sentence for line in document.splitlines() for sentence in sentences(line)]


def find_model(path: Path) -> Path:
    """The folder of the model's files: `path` itself, or the English one of an nltk_data folder.

    Raises:
        ConfigError: neither holds one.
    """
    for folder in (path, path / "english", path / "tokenizers" / "punkt_tab" / "english"):
        if all((folder / name).is_file() for name in _FILES):
            return folder
    raise ConfigError(f"punkt: {path} holds no Punkt model; give a folder with {', '.join(_FILES)}")


def train_model(texts: Iterable[str]) -> PunktModel:
    """Punkt's unsupervised training (Kiss and Strunk, 2006) with NLTK's defaults."""
    from nltk.tokenize.punkt import PunktTrainer  # takes two seconds to import

    trainer = PunktTrainer()
    for text in texts:
        trainer.train(text, finalize=False)
    trainer.finalize_training()
    return PunktModel(**vars(trainer.get_params()))


def load_model(folder: Path) -> PunktModel:
    """Reads a model's four files.

    Raises:
        ConfigError: one is missing or does not have the form.
    """
    model = PunktModel()
    try:
        lines = {name: (folder / name).read_text("utf-8").split("\n") for name in _FILES}
        model.abbrev_types = {line for line in lines["abbrev_types.txt"] if line}
        model.sent_starters = {line for line in lines["sent_starters.txt"] if line}
        for line in filter(None, lines["collocations.tab"]):
            first, second = line.split("\t")
            model.collocations.add((first, second))
        for line in filter(None, lines["ortho_context.tab"]):
            word, flags = line.split("\t")
            model.ortho_context[word] = int(flags)
    except (OSError, ValueError) as error:
        raise ConfigError(f"punkt: {folder} is not a Punkt model ({error}); give the folder of one") from None
    return model


def save_model(model: PunktModel, folder: Path) -> None:
    """Writes a model in the form `load_model` reads, sorted, so that equal models are equal files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _contents(model).items():
        write_if_other(folder / name, content.encode())


def model_sha256(model: PunktModel) -> str:
    """Names the model by its content."""
    return hashlib.sha256("\n\n".join(_contents(model).values()).encode()).hexdigest()


def _contents(model: PunktModel) -> dict[str, str]:
    return {
        "abbrev_types.txt": "\n".join(sorted(model.abbrev_types)),
        "collocations.tab": "\n".join(sorted("\t".join(pair) for pair in model.collocations)),
        "ortho_context.tab": "\n".join(f"{word}\t{flags}" for word, flags in sorted(model.ortho_context.items())),
        "sent_starters.txt": "\n".join(sorted(model.sent_starters)),
    }
