"""The model to fine-tune, identified by its content."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.config import ConfigError
from foundation.files import file_sha256
from pretrain.huggingface.export import TOKENIZER_SETTINGS
from pretrain.huggingface.folders import AGAIN, find_folder, read_config, read_encoder_config
from pretrain.model.encoder import EncoderConfig

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


@dataclass(frozen=True)
class ModelFolder:
    """A model to fine-tune: a local folder, found or downloaded."""

    path: Path
    sha256: str
    """Digest of the names and contents of its files."""
    config: EncoderConfig
    tokenizer: Any


def open_model(name: str) -> ModelFolder:
    """Opens an exported folder, or a stock Hugging Face ELECTRA by folder or hub name; reads no weights yet.

    Raises:
        ConfigError: there is no such model, it is no ELECTRA, or it has no tokenizer that fits.
    """
    path = find_folder(name)
    config = read_encoder_config(path)
    tokenizer = load_tokenizer(path)
    if (pieces := max(tokenizer.get_vocab().values()) + 1) > config.vocab_size:
        raise ConfigError(
            f"model: tokenizer in {path} has {pieces} pieces, expected at most {config.vocab_size}; {AGAIN}"
        )
    files = sorted(entry for entry in path.iterdir() if entry.is_file())
    names_and_contents = b"".join(file.name.encode() + bytes.fromhex(file_sha256(file)) for file in files)
    sha256 = hashlib.sha256(names_and_contents).hexdigest()
    return ModelFolder(path, sha256, config, tokenizer)


def read_tokenizer_settings(path: Path) -> dict[str, Any]:
    """Returns the settings in a folder's `tokenizer_config.json`; none if there is no such file."""
    return read_config(path, TOKENIZER_SETTINGS) if (path / TOKENIZER_SETTINGS).is_file() else {}


def load_tokenizer(path: Path) -> Any:
    """Loads the folder's own tokenizer, without running code from the folder as `AutoTokenizer` would ask to."""
    from transformers import ElectraTokenizerFast, PreTrainedTokenizerFast

    if not any((path / name).is_file() for name in TOKENIZER_FILES):  # transformers would make up an empty one
        raise ConfigError(
            f"model: {path} has no tokenizer; save one there, expected one of {', '.join(TOKENIZER_FILES)} in it"
        )
    kind = read_tokenizer_settings(path).get("tokenizer_class")
    as_it_is = kind in ("PreTrainedTokenizerFast", PreTrainedTokenizerFast.__name__)  # versions rename it
    try:
        tokenizer = (PreTrainedTokenizerFast if as_it_is else ElectraTokenizerFast).from_pretrained(path)
        tokenizer(["\u2603", "a snowman"], padding=True)  # needs [UNK] and [PAD]
        return tokenizer
    except Exception as error:  # a damaged file makes the library raise bare exceptions too
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"model: {path} has a tokenizer that cannot be used: {reason}; {AGAIN}") from None
