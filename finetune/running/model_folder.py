"""The model to fine-tune, known by its content, and the runs of it that a command line asks for."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.config import FinetuneOptions, GlueConfig, SquadConfig
from finetune.presets import paper_grid
from finetune.running.records import RunIdentity
from foundation.config import ConfigError
from foundation.files import file_sha256
from pretrain.huggingface.folders import find_folder, read_encoder_config
from pretrain.model.encoder import EncoderConfig

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


@dataclass(frozen=True)
class ModelFolder:
    """A local folder, found or downloaded."""

    path: Path
    sha256: str
    """Over the names and contents of its files."""
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
    files = sorted(entry for entry in path.iterdir() if entry.is_file())
    names_and_contents = b"".join(file.name.encode() + bytes.fromhex(file_sha256(file)) for file in files)
    return ModelFolder(path, hashlib.sha256(names_and_contents).hexdigest(), config, tokenizer)


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


def plan_runs(
    options: FinetuneOptions,
    model: ModelFolder,
    task: str,
    data_sha256: str,
    settings_for: Callable[[int, int, dict[str, Any]], GlueConfig | SquadConfig],
    overrides: dict[str, Any],
) -> list[RunIdentity]:
    """The runs asked for on one task: one per setting and seed.

    Raises:
        ConfigError: a setting out of range.
    """
    hidden_size, positions = model.config.hidden_size, model.config.max_position_embeddings
    points = paper_grid(task, hidden_size) if options.grid else [{}]
    wanted = [settings_for(hidden_size, positions, point | overrides) for point in points]
    return [
        RunIdentity(
            task=task,
            seed=seed,
            model_sha256=model.sha256,
            random_weights=options.random_weights,
            data_sha256=data_sha256,
            settings=settings,
        )
        for settings in dict.fromkeys(wanted)
        for seed in dict.fromkeys(options.seeds)
    ]
