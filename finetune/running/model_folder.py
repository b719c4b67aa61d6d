"""The model to fine-tune: its folder, tokenizer and shape, and a fingerprint to know finished runs by."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.config import ConfigError
from pretrain.huggingface.folders import find_folder, read_encoder_config
from pretrain.model.encoder import EncoderConfig

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


@dataclass(frozen=True)
class ModelFolder:
    """A local folder, found or downloaded."""

    path: Path
    sha256: str
    config: EncoderConfig
    tokenizer: Any


def open_model(name: str) -> ModelFolder:
    """Opens an exported folder, or a stock Hugging Face ELECTRA by folder or hub name; reads no weights yet.

    Raises:
        ConfigError: no such model, another architecture, or no tokenizer that fits it.
    """
    path = find_folder(name)
    config = read_encoder_config(path)
    tokenizer = load_tokenizer(path)
    if len(tokenizer) > config.vocab_size:
        raise ConfigError(
            f"model: tokenizer in {path} has {len(tokenizer)} pieces, expected at most {config.vocab_size}"
        )
    return ModelFolder(path, fingerprint(path), config, tokenizer)


def load_tokenizer(path: Path) -> Any:
    """The folder's own tokenizer; none of the folder's code is run, which `AutoTokenizer` would ask for."""
    from transformers import ElectraTokenizerFast, PreTrainedTokenizerFast

    if not any((path / name).is_file() for name in TOKENIZER_FILES):  # it would make up an empty one
        raise ConfigError(f"model: {path} has no tokenizer, expected one of {', '.join(TOKENIZER_FILES)} in it")
    try:
        settings = path / "tokenizer_config.json"
        kind = json.loads(settings.read_text("utf-8")).get("tokenizer_class") if settings.is_file() else None
        as_it_is = kind in ("PreTrainedTokenizerFast", PreTrainedTokenizerFast.__name__)  # which versions change
        return (PreTrainedTokenizerFast if as_it_is else ElectraTokenizerFast).from_pretrained(path)
    except Exception as error:  # a damaged file makes the library raise bare exceptions too
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"model: {path} has a tokenizer that cannot be read: {reason}") from None


def fingerprint(path: Path) -> str:
    """SHA-256 over the names and contents of the folder's files."""
    digest = hashlib.sha256()
    for file in sorted(entry for entry in path.iterdir() if entry.is_file()):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
