"""Models to and from Hugging Face folders: `config.json` + `model.safetensors` (+ tokenizer files).

Parameter names are Hugging Face's own, so weights are copied without renaming. Without relative position a folder is a
stock `ElectraForPreTraining` / `ElectraForMaskedLM`; with it `model_type` is `electra_sampler`, and the folder carries
its model code. `AutoModel` loads it only with `trust_remote_code`, so the table is never silently dropped.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import ConfigDict, Field, create_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foundation.config import ConfigError, StrictConfig, counted
from foundation.files import read_object
from pretrain.huggingface.modernbert import MODEL_TYPE, read_modernbert, unfolded
from pretrain.model.encoder import ElectraEncoder, Encoder, EncoderConfig, EncoderSizes
from pretrain.model.modern import ModernConfig, ModernEncoder

STOCK_MODEL_TYPE = "electra"
RELATIVE_MODEL_TYPE = "electra_sampler"

COMPUTED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}
"""Hugging Face settings that change what a model computes and that `EncoderConfig` lacks, each with the only value
supported here, which is also its default."""


class _Settings(StrictConfig):
    """Settings read from a `config.json`; unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    model_type: str
    architectures: list[str] | None = None
    tie_word_embeddings: bool = True


_BOUNDED: dict[Any, Any] = {
    int: Annotated[int, Field(gt=0, le=2**20)],
    float: Annotated[float, Field(ge=0, le=1)],
    "num_hidden_layers": Annotated[int, Field(gt=0, le=2**10)],
}
_FIELDS: Any = {
    field.name: (
        _BOUNDED.get(field.name) or _BOUNDED.get(field.type, field.type),
        ... if field.default is dataclasses.MISSING else field.default,
    )
    for field in dataclasses.fields(EncoderConfig)
} | {name: (Literal[only], only) for name, only in COMPUTED.items()}
Settings = create_model("Settings", __base__=_Settings, **_FIELDS)
"""The settings read from a `config.json`, with the fields of `EncoderConfig`, whose values have upper limits."""

BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Position numbers and zeros, which old versions of transformers saved among the weights."""
EXACT = (torch.float32, torch.bfloat16, torch.float16)
"""Types in which weights may be stored: fp32 represents each of them exactly."""

PICKLED = "pytorch_model.bin"
"""File of weights as old versions of transformers saved them."""

AGAIN = "export or download the model again"
"""End of messages about a damaged or incomplete folder."""

MODEL_FILE = "modeling_electra_sampler.py"
"""The model code in a folder with relative position, named by `auto_map`: a copy of the module in this package."""
AUTO_CLASSES = {
    "AutoConfig": "ElectraSamplerConfig",
    "AutoModel": "ElectraSamplerModel",
    **{
        f"AutoModelFor{task}": f"ElectraSamplerFor{task}"
        for task in (
            *("PreTraining", "MaskedLM", "SequenceClassification", "TokenClassification"),
            *("QuestionAnswering", "MultipleChoice"),
        )
    },
}
JOINT_ANSWERER = "ElectraForJointQuestionAnswering"
"""The one class without a stock counterpart: its folder always carries the model code."""
RELATIVE_TABLE = "electra.encoder.relative_attention_bias.weight"


def save_folder(
    folder: Path,
    architecture: str,
    config: EncoderConfig,
    weights: Mapping[str, Tensor],
    pad_token_id: int,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Writes `config.json`, `model.safetensors` and the model code; `weights` carry Hugging Face's names.

    `settings` are added to `config.json`. If only the model code has the class, a model without relative position
    gets a table of zeros.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if architecture == JOINT_ANSWERER and not config.relative_position:
        table = torch.zeros(config.relative_attention_num_buckets, config.num_attention_heads)
        config, weights = dataclasses.replace(config, relative_position=True), {**weights, RELATIVE_TABLE: table}
    fields = dataclasses.asdict(config)
    if config.relative_position:
        classes, own = AUTO_CLASSES, architecture.replace("Electra", "ElectraSampler")
        if architecture == JOINT_ANSWERER:
            classes = classes | {"AutoModelForQuestionAnswering": own}
        fields["auto_map"] = {auto: f"{Path(MODEL_FILE).stem}.{name}" for auto, name in classes.items()}
        architecture = own
        (folder / MODEL_FILE).write_bytes(Path(__file__).with_name(MODEL_FILE).read_bytes())
    else:
        fields = {name: value for name, value in fields.items() if not name.startswith("relative_")}
    description = {
        "architectures": [architecture],
        "model_type": RELATIVE_MODEL_TYPE if config.relative_position else STOCK_MODEL_TYPE,
        "hidden_act": "gelu",
        "pad_token_id": pad_token_id,
        "tie_word_embeddings": True,
        **fields,
        **(settings or {}),
    }
    (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n")
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def load_encoder(folder: str | Path, *, random_weights: bool = False, **changes: Any) -> Encoder:
    """Returns the encoder of an ELECTRA or ModernBERT, from a local folder or, if there is a network, the hub.

    With `random_weights`, the folder's weights are not read, and the encoder keeps its random initialization. `changes`
    replace fields of its configuration, such as dropout.

    Raises:
        ConfigError: no such folder, neither ELECTRA nor ModernBERT, or weights that do not fit the configuration.
    """
    local = find_folder(folder)
    config = dataclasses.replace(read_any_config(local), **changes)
    encoder: Encoder = ModernEncoder(config) if isinstance(config, ModernConfig) else ElectraEncoder(cast(Any, config))
    if random_weights:
        return encoder
    weights = read_weights(local)
    weights = unfolded(weights) if isinstance(config, ModernConfig) else weights
    own = {name: weight for name, weight in weights.items() if name.startswith("electra.")}
    bare = {f"electra.{name}": weight for name, weight in weights.items()}  # an `ElectraModel`
    fill(nn.ModuleDict({"electra": encoder}), own or bare, local)
    return encoder


def find_folder(name: str | Path) -> Path:
    """Returns the local model folder `name`, or else the cached or downloaded snapshot of that name on the hub."""
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or folder.is_absolute() or len(folder.parts) != 2:
        raise ConfigError(
            f"model: {name} has no config.json; name a folder written by pretrain/export.py, or a stock ELECTRA"
        )
    from huggingface_hub import snapshot_download

    try:
        found = Path(snapshot_download(str(name), allow_patterns=["*.json", "*.safetensors", "vocab.txt"]))
        if not any(found.glob("*.safetensors")):
            found = Path(snapshot_download(str(name), allow_patterns=["*.json", PICKLED, "vocab.txt"]))
        return found
    except Exception as error:  # the hub client raises a dozen types; each means that the download failed
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model: {name} is not a local folder and could not be downloaded from the hub: {reason}; check the"
            " name, or download the model and name its folder"
        ) from None


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """Returns the settings in a folder's `config.json`, or in another file of settings."""
    return read_object(folder / name, "model", AGAIN)


def read_any_config(folder: Path) -> EncoderSizes:
    """Returns the encoder configuration in a folder's `config.json`: an ELECTRA's or a ModernBERT's.

    Raises:
        ConfigError: it is neither, or one with settings that this implementation lacks.
    """
    values = read_config(folder)
    if values.get("model_type") == MODEL_TYPE:
        return read_modernbert(values, f"model: {folder / 'config.json'}")
    return read_encoder_config(folder, values)


def read_encoder_config(folder: Path, values: Mapping[str, Any]) -> EncoderConfig:
    """Returns the encoder configuration in the `values` of the folder's `config.json`.

    Raises:
        ConfigError: it is not an ELECTRA, or one with settings that this implementation lacks.
    """
    path = folder / "config.json"
    if values.get("model_type") not in (STOCK_MODEL_TYPE, RELATIVE_MODEL_TYPE):
        raise ConfigError(f"model: {path} has model_type {values.get('model_type')!r}; name an ELECTRA model")
    try:
        settings = dict(Settings.from_values(values, f"model: {path}"))
        fields = {field.name: settings[field.name] for field in dataclasses.fields(EncoderConfig)}
        return EncoderConfig(**fields | {"relative_position": values["model_type"] == RELATIVE_MODEL_TYPE})
    except ConfigError as error:
        raise ConfigError(*(f"{problem}; correct it, or name another model" for problem in error.problems)) from None
    except ValueError as error:
        raise ConfigError(f"model: {path}: {error}; {AGAIN}") from None


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
    try:
        stored = torch.load(path, "cpu", weights_only=True) if path.name == PICKLED else load_file(path)
        if not all(
            isinstance(name, str) and isinstance(weight, Tensor) and weight.layout is torch.strided and weight.is_cpu
            for name, weight in stored.items()
        ):
            raise ValueError("expected nothing but dense tensors by name")
    except (SafetensorError, OSError, RuntimeError, UnpicklingError, EOFError, AttributeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"model: cannot read {path}: {reason}; {AGAIN}") from None
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
