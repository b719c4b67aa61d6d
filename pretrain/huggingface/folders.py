"""Hugging Face folders as files: found or downloaded; settings, tokenizer and weights read; a model filled."""

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import huggingface_hub
import torch
from jinja2 import StrictUndefined, Template
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from data_prep.tokens import class_settings, read_folder
from electra_sampler.foundation.config import ConfigError, counted, errors_of_hub, explained
from electra_sampler.foundation.files import read_object

BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Position numbers and zeros, which old versions of transformers saved among the weights."""
EXACT = (torch.float32, torch.bfloat16, torch.float16)
"""Types in which weights may be stored: fp32 represents each of them exactly."""

DAMAGED = (
    *(OSError, SafetensorError, UnpicklingError, EOFError, struct.error, RuntimeError),
    *(AssertionError, AttributeError, LookupError, TypeError, ValueError),
)
"""Errors of reading damaged weights; PyTorch's unpickler takes every byte for a sound one."""
PICKLED = "pytorch_model.bin"
"""File of weights as old versions of transformers saved them."""

TOKENIZER_FILES, TOKENIZER_SETTINGS = ("tokenizer.json", "vocab.txt"), "tokenizer_config.json"

AGAIN = "export or download the model again"
"""End of messages about a damaged or incomplete folder."""
CARD = "README.md"
LICENSE = re.compile(r"\A---\n(?:(?!---).*\n)*?license: *([\w.-]+)\n")
"""The license in the header of a model card."""


def find_folder(name: str | Path) -> Path:
    """Returns the local model folder `name`, or else the cached or downloaded snapshot of that name on the hub."""
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or folder.is_absolute() or len(folder.parts) != 2 or Path(folder.parts[0]).exists():
        problem = "has no config.json" if folder.exists() else "does not exist"
        raise ConfigError(
            f"model: {name} {problem}; name an exported or stock model's folder, or a run where the command takes one"
        )
    what = f"model: {name} is not a local folder and could not be downloaded from the hub"
    with explained(what, "check the name, or download the model and name its folder", errors_of_hub()):
        files = ["*.json", "vocab.txt", CARD]
        found = Path(huggingface_hub.snapshot_download(str(name), allow_patterns=[*files, "*.safetensors"]))
        if not any(found.glob("*.safetensors")):
            found = Path(huggingface_hub.snapshot_download(str(name), allow_patterns=[*files, PICKLED]))
        return found


def source_of(name: str) -> tuple[str, str]:
    """Returns how a card names a model: a folder by its last part, without those above it; and the license in the
    model's own card, in words, empty if there is none in the folder or the hub's cache.
    """
    card, on_hub = Path(name) / CARD, not Path(name).exists() and name.count("/") == 1
    if on_hub:
        with suppress(ValueError):  # the folder is gone, and its name is none that the hub allows
            card = Path(str(huggingface_hub.try_to_load_from_cache(name, CARD)))
    found = card.is_file() and LICENSE.search(card.read_text("utf-8", "replace"))
    return name if on_hub else Path(name).absolute().name, f" (license {found[1]})" if found else ""


def written_card(template: Path, **values: Any) -> str:
    """Returns a model card in Markdown, written from a template in which every name must have a value."""
    return Template(
        template.read_text("utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).render(values)


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """Returns the settings in a folder's `config.json`, or in another file of settings; empty if there is none."""
    return read_object(folder / name, "model", AGAIN) if (folder / name).is_file() else {}


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def load_tokenizer(folder: Path, ids: int | None = None) -> Any:
    """Loads the tokenizer in a folder, as data preparation reads it, for `transformers`.

    Raises:
        ConfigError: there is none, it cannot be read, has more pieces than the model has `ids`, or puts no special
            tokens around a text.
    """
    from transformers import PreTrainedTokenizerFast

    if not has_tokenizer(folder):
        raise ConfigError(
            f"model: {folder} has no tokenizer; save one there, expected one of {', '.join(TOKENIZER_FILES)} in it"
        )
    whole, marks = read_folder(folder, "model")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=whole,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in marks.items()},
    )
    pieces = max(tokenizer.get_vocab().values()) + 1
    if ids is not None and pieces > ids:
        raise ConfigError(f"model: tokenizer in {folder} has {pieces} pieces, expected at most {ids}; {AGAIN}")
    if tokenizer("")["input_ids"] != [tokenizer.cls_token_id, tokenizer.sep_token_id]:
        raise ConfigError(
            f"model: the tokenizer in {folder} does not fit; expected [CLS] and [SEP] around a text; save the model's"
            " own there"
        )
    return tokenizer


def tokenizer_settings(folder: Path, tokenizer: Any) -> dict[str, Any]:
    """Returns the settings in a folder's `tokenizer_config.json`, and those it lacks for the ids of its `tokenizer`."""
    return (
        class_settings(tokenizer.backend_tokenizer)
        | tokenizer.special_tokens_map
        | read_config(folder, TOKENIZER_SETTINGS)
    )


def read_weights(folder: Path, file: str = "model.safetensors") -> dict[str, Tensor]:
    """Returns a folder's weights by name, from `file` or, if there is none, from `pytorch_model.bin`.

    Only tensors are unpickled.

    Raises:
        ConfigError: the file is missing or damaged, fp32 cannot hold its weights exactly, or some are not finite.
    """
    path = next(filter(Path.is_file, (folder / file, folder / PICKLED)), None)
    if path is None:
        parts = (folder / "model.safetensors.index.json").is_file()
        raise ConfigError(
            f"model: {folder} has its weights in several files; save it as one, with a max_shard_size above its size"
            if parts
            else f"model: {folder} has no model.safetensors; save it in that format"
        )
    with explained(f"model: cannot read {path}", AGAIN, DAMAGED):
        stored = torch.load(path, "cpu", weights_only=True) if path.name == PICKLED else load_file(path)
    if not isinstance(stored, dict) or not all(
        isinstance(name, str) and isinstance(weight, Tensor) and weight.layout is torch.strided and weight.is_cpu
        for name, weight in stored.items()
    ):
        raise ConfigError(f"model: cannot read {path} (expected nothing but dense tensors by name); {AGAIN}")
    weights = {name: weight for name, weight in stored.items() if not name.endswith(BUFFERS)}
    for name, weight in weights.items():
        if weight.dtype not in EXACT:
            kind = str(weight.dtype).removeprefix("torch.")
            raise ConfigError(f"model: {path} holds {name} as {kind}; save it as float32, bfloat16 or float16")
        if weight.numel() and not torch.stack(weight.aminmax()).isfinite().all():  # a tenth of isfinite's time
            raise ConfigError(f"model: {path} holds NaN or infinity in {name}, expected numbers; {AGAIN}")
    return weights


def fill(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Copies all weights of a folder into the model, bit for bit.

    Raises:
        ConfigError: a weight is missing, has another shape, or does not belong to the model.
    """
    try:
        missing, others = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
        raise ConfigError(f"model: weights of {folder} do not fit its config.json: {problem}; {AGAIN}") from None
    if missing:
        raise ConfigError(
            f"model: {folder} lacks {counted(len(missing), 'weight')} of its configuration, such as {missing[0]};"
            f" {AGAIN}"
        )
    if others:
        raise ConfigError(
            f"model: {folder} holds {counted(len(others), 'weight')} that the model in its config.json lacks, such as"
            f" {min(others)}; correct config.json, or save the model without them"
        )
