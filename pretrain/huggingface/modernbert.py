"""The modern encoder to and from Hugging Face's ModernBERT, whose classes need no code of this project.

A discriminator is a `ModernBertForTokenClassification` with one label, a generator a `ModernBertForMaskedLM`. Where
the encoder is narrower than the word embeddings, its two projections are multiplied into the tables, so that embeddings
and output matrix of such a folder are no longer one: equal to the run's model within rounding.

Shape letters: V vocabulary, E embedding size, H hidden size.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, ConfigDict, Field
from safetensors.torch import save_file
from torch import Tensor

from data_prep.tokens import SpecialTokens
from foundation.config import ConfigError, StrictConfig
from pretrain.model.modern import ModernConfig

MODEL_TYPE = "modernbert"
ARCHITECTURES = {
    "ElectraForPreTraining": "ModernBertForTokenClassification",
    "ElectraForMaskedLM": "ModernBertForMaskedLM",
}
WORDS = "embeddings.word_embeddings.weight"
NAMES = {
    "embeddings.word_embeddings.": "model.embeddings.tok_embeddings.",
    "norm.": "model.embeddings.norm.",
    "encoder.layer.": "model.layers.",
    "encoder.final_norm.": "model.final_norm.",
}
"""An encoder's parameter names here, and ModernBERT's."""
HEADS = {
    "generator_predictions.dense.": "head.dense.",
    "generator_predictions.LayerNorm.": "head.norm.",
    "generator_lm_head.": "decoder.",
    "discriminator_predictions.dense.": "head.dense.",
    "discriminator_predictions.LayerNorm.": "head.norm.",
    "discriminator_predictions.dense_prediction.": "classifier.",
}


def save_modernbert(
    folder: Path,
    architecture: str,
    config: ModernConfig,
    weights: Mapping[str, Tensor],
    special: SpecialTokens,
    settings: Mapping[str, Any],
) -> None:
    """Writes `config.json` with these `settings` added, and `model.safetensors`; `weights` and `architecture` carry
    ELECTRA's names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stock = folded(weights)
    description = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": MODEL_TYPE,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
        "norm_eps": config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "local_attention": config.window,
        "attention_dropout": 0.0,
        "tie_word_embeddings": "decoder.weight" not in stock,
        "num_labels": 1,
        "id2label": {"0": "replaced"},
        "label2id": {"replaced": 0},
        # transformers 5
        "layer_types": layer_types(config),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.global_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_theta},
        },
        # transformers 4
        "global_attn_every_n_layers": config.global_every,
        "global_rope_theta": config.global_theta,
        "local_rope_theta": config.local_theta,
        "pad_token_id": special.pad,
        "cls_token_id": special.cls,
        "bos_token_id": special.cls,
        "sep_token_id": special.sep,
        "eos_token_id": special.sep,
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n")
    contiguous = {name: weight.contiguous() for name, weight in stock.items()}
    save_file(contiguous, folder / "model.safetensors", {"format": "pt"})


def layer_types(config: ModernConfig) -> list[str]:
    return [f"{'full' if config.sees_all(layer) else 'sliding'}_attention" for layer in range(config.num_hidden_layers)]


def folded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns an encoder's weights and its head's under ModernBERT's names, with projections multiplied into tables."""
    own = {name.removeprefix("electra."): weight for name, weight in weights.items()}
    words_VE = own[WORDS]
    if (into_HE := own.pop("embeddings_project.weight", None)) is not None:
        own[WORDS] = words_VE @ into_HE.T
        if (out_EH := own.pop("generator_predictions.embeddings_project.weight", None)) is not None:
            own["generator_lm_head.weight"] = words_VE @ out_EH
    return {renamed(name, {**NAMES, **HEADS}): weight for name, weight in own.items()}


def unfolded(weights: Mapping[str, Tensor], role: str = "discriminator") -> dict[str, Tensor]:
    """Returns the weights of a ModernBERT under ELECTRA's names: the encoder's, and the head's of a model in this role.

    Weights of heads for other tasks keep their names.
    """
    heads = {theirs: ours for ours, theirs in HEADS.items() if ours.startswith(role)}
    names = {theirs: f"electra.{ours}" for ours, theirs in NAMES.items()} | heads
    bare = not any(name.startswith(("model.", "head.")) for name in weights)  # a `ModernBertModel`
    prefixed = {f"model.{name}" if bare else name: weight for name, weight in weights.items()}
    return {renamed(name, names): weight for name, weight in prefixed.items()}


def renamed(name: str, names: Mapping[str, str]) -> str:
    prefix = next((prefix for prefix in names if name.startswith(prefix)), "")
    return names.get(prefix, "") + name.removeprefix(prefix)


class _Rotation(StrictConfig):
    """Settings of one kind of layer's rotary positions."""

    model_config = ConfigDict(extra="ignore", strict=True)
    rope_type: Literal["default"] = Field("default", validation_alias=AliasChoices("rope_type", "type"))
    rope_theta: float | None = Field(default=None, gt=1)


class _Settings(StrictConfig):
    """Settings of a ModernBERT that change what it computes; all others are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    vocab_size: int = Field(gt=0, le=2**20)
    hidden_size: int = Field(gt=0, le=2**20)
    intermediate_size: int = Field(gt=0, le=2**20)
    num_hidden_layers: int = Field(gt=0, le=2**10)
    num_attention_heads: int = Field(gt=0, le=2**20)
    max_position_embeddings: int = Field(default=8192, gt=0, le=2**20)
    norm_eps: float = Field(default=1e-5, ge=0, le=1)
    initializer_range: float = Field(default=0.02, ge=0, le=1)
    local_attention: int = Field(default=128, gt=0, le=2**20, multiple_of=2)
    global_attn_every_n_layers: int = Field(default=3, gt=0, le=2**10)
    global_rope_theta: float = Field(default=160_000.0, gt=1)
    local_rope_theta: float = Field(default=10_000.0, gt=1)
    hidden_activation: Literal["gelu"] = "gelu"
    classifier_activation: Literal["gelu"] = "gelu"
    rope_parameters: dict[Literal["full_attention", "sliding_attention"], _Rotation] | None = None
    rope_scaling: None = None
    sliding_window: int | None = Field(default=None, gt=0, le=2**19)
    """Half of `local_attention`; if given, transformers uses it instead."""
    norm_bias: Literal[False] = False
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False


def read_modernbert(values: Mapping[str, Any], source: str) -> ModernConfig:
    """Returns the configuration of a ModernBERT's `config.json`, written by transformers 4 or 5.

    Raises:
        ConfigError: it computes what is not computed here.
    """
    kinds = values.get("layer_types")
    if isinstance(kinds, list) and "full_attention" in kinds[1:]:
        values = {**values, "global_attn_every_n_layers": kinds.index("full_attention", 1)}
    try:
        found = _Settings.from_values(values, source)
        bases = {kind: one.rope_theta for kind, one in (found.rope_parameters or {}).items()}
        config = ModernConfig(
            vocab_size=found.vocab_size,
            embedding_size=found.hidden_size,
            hidden_size=found.hidden_size,
            num_hidden_layers=found.num_hidden_layers,
            num_attention_heads=found.num_attention_heads,
            intermediate_size=found.intermediate_size,
            max_position_embeddings=found.max_position_embeddings,
            initializer_range=found.initializer_range,
            layer_norm_eps=found.norm_eps,
            window=2 * found.sliding_window if found.sliding_window else found.local_attention,
            global_every=found.global_attn_every_n_layers,
            global_theta=bases.get("full_attention") or found.global_rope_theta,
            local_theta=bases.get("sliding_attention") or found.local_rope_theta,
        )
    except (ConfigError, ValueError) as error:
        problems = error.problems if isinstance(error, ConfigError) else (f"{source}: {error}",)
        raise ConfigError(*(f"{problem}; correct it, or name another model" for problem in problems)) from None
    if kinds is not None and kinds != layer_types(config):
        raise ConfigError(f"{source}: layer_types: expected full attention in every n-th layer, from the first on")
    return config
