"""The model to fine-tune, identified by its content, and the runs of it that a command line asks for."""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finetune.config import FinetuneOptions
from foundation.config import ConfigError
from foundation.files import file_sha256
from foundation.locks import Lock
from pretrain.analysis.model_card import model_card
from pretrain.engine.checkpoint import MARKER, Checkpoint
from pretrain.huggingface.export import TOKENIZER_SETTINGS, export
from pretrain.huggingface.folders import AGAIN, find_folder, read_config, read_encoder_config
from pretrain.model.encoder import EncoderSizes
from pretrain.training.models import choose_checkpoints, load_checkpoint
from pretrain.training.run_folder import DESCRIPTION, read_run

MODELS = "models"
"""Folder, in the output folder, of exported checkpoints."""
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


@dataclass(frozen=True)
class ModelFolder:
    """A model to fine-tune: a local folder, found or downloaded."""

    path: Path
    sha256: str
    """Digest of the names and contents of its files."""
    config: EncoderSizes
    tokenizer: Any
    step: int | None = None
    """Pre-training step of the checkpoint that it was exported from, in a sweep over a run's checkpoints."""


def open_models(options: FinetuneOptions) -> list[ModelFolder]:
    """Opens the model of a command line or, with `steps`, one for each of these checkpoints of a run, the oldest first.

    Checkpoints are exported once, into a folder of the output folder.

    Raises:
        ConfigError: there is no such model, run or checkpoint.
    """
    if not options.steps:
        return [open_model(options.model)]
    run = Path(options.model)
    if not (run / DESCRIPTION).is_file():
        raise ConfigError(f"steps: {run} has no {DESCRIPTION}; expected --model to be a run folder of pretrain/run.py")
    if options.random_weights:
        raise ConfigError("steps: random_weights leaves nothing of a checkpoint; give one of the two")
    return [
        replace(open_model(str(export_once(run, checkpoint, options.output / MODELS))), step=checkpoint.step)
        for checkpoint in choose_checkpoints(run, options.steps)
    ]


def export_once(run: Path, checkpoint: Checkpoint, models: Path) -> Path:
    """Exports a checkpoint into a folder of `models`; one process writes it while the others wait."""
    name = f"{run.resolve().name}-{checkpoint.folder.name}-{file_sha256(checkpoint.folder / MARKER)[:10]}"
    folder = models / name
    with Lock(models / f"{name}.lock", math.inf):
        if not folder.exists():
            description = read_run(run)
            card = model_card(run, description, checkpoint.step, language="en", license="unknown")
            model = load_checkpoint(description, checkpoint)
            export(model, description.pad_token_id, run / "tokenizer", card, folder)
            print(f"exported step {checkpoint.step} of {run} to {folder}", flush=True)
    return folder


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
