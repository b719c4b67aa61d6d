"""An export as a stock Hugging Face MPNet: `AutoModel`, pipelines and sentence-transformers load it without our code.

MPNet is the same network where embedding and hidden size are equal: layers, relative position bias and GELU agree. It
has no segments and counts positions from 2, so the vector of segment A is added to its position table. Wherever id 1
occurs it skips a position, as padding, so [PAD] and the token of id 1 exchange their ids.

Shape letters: P positions, H hidden size.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from data_prep.tokens import WordPiece
from foundation.config import ConfigError
from foundation.files import new_folder
from pretrain.method.objective import Objective
from pretrain.model.config import ModelConfig

PADDING = 1
"""The id of padding in MPNet's code, which ignores the configuration; positions start after it."""
NAMES = {
    "attention.self.query.": "attention.attn.q.",
    "attention.self.key.": "attention.attn.k.",
    "attention.self.value.": "attention.attn.v.",
    "attention.output.dense.": "attention.attn.o.",
    "attention.output.LayerNorm.": "attention.LayerNorm.",
    "generator_predictions.dense.": "lm_head.dense.",
    "generator_predictions.LayerNorm.": "lm_head.layer_norm.",
    "generator_lm_head.bias": "lm_head.bias",
}
"""Parameter names of ELECTRA, and MPNet's."""
EMBEDDINGS = "electra.embeddings"


def require_mpnet(run: Path, model: ModelConfig, one_segment: bool) -> None:
    """Refuses the model of a run that MPNet cannot compute.

    Raises:
        ConfigError: each reason.
    """
    problems = []
    if not model.relative_position:
        problems.append(
            f"format: got mpnet, but {run} has relative_position false; leave --format out: the export is a stock"
            " ELECTRA"
        )
    if model.embedding_size != model.hidden_size:
        problems.append(
            f"format: got mpnet, which needs embedding_size equal to hidden_size, but {run} has"
            f" {model.embedding_size} and {model.hidden_size}; leave --format out, or pre-train with equal sizes, as"
            " the presets tiny and base"
        )
    if not one_segment:
        problems.append(
            f"format: got mpnet, which has no second segment, but {run} was trained with one; leave --format out, or"
            " pre-train on shards built with --one_segment"
        )
    if problems:
        raise ConfigError(*problems)


def export_mpnet(model: Objective, tokenizer: Path, card: str, out: Path) -> None:
    """Writes the discriminator's encoder as `MPNetModel`, or a masked language model as `MPNetForMaskedLM`; the folder
    is complete or absent.
    """
    modules = model.exported(".")
    config: Any = modules["electra"].config
    word_piece = WordPiece.load(tokenizer)
    pad = word_piece.special.pad
    predicts = "generator_lm_head" in modules
    description = {
        "architectures": ["MPNetForMaskedLM" if predicts else "MPNetModel"],
        "model_type": "mpnet",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "max_position_embeddings": config.max_position_embeddings + PADDING + 1,
        "initializer_range": config.initializer_range,
        "layer_norm_eps": config.layer_norm_eps,
        "relative_attention_num_buckets": config.relative_attention_num_buckets,
        "pad_token_id": PADDING,
        "bos_token_id": word_piece.special.cls,
        "eos_token_id": word_piece.special.sep,
        "tie_word_embeddings": True,
    }
    weights = mpnet_weights(modules.state_dict(), pad, "mpnet." if predicts else "")
    files = with_padding_at_1(word_piece).files()
    settings = {
        **json.loads(files["tokenizer_config.json"]),
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": config.max_position_embeddings,
    }
    files["tokenizer_config.json"] = json.dumps(settings, indent=2).encode()
    with new_folder(out) as unfinished:
        (unfinished / "config.json").write_text(json.dumps(description, indent=2) + "\n")
        save_file(weights, unfinished / "model.safetensors", {"format": "pt"})
        for name, content in files.items():
            (unfinished / name).write_bytes(content)
        (unfinished / "README.md").write_text(card)


def mpnet_weights(weights: dict[str, Tensor], pad: int, prefix: str) -> dict[str, Tensor]:
    """The weights under MPNet's names, `prefix` before the encoder's; MPNet has no discriminator head."""
    segments = weights.pop(f"{EMBEDDINGS}.token_type_embeddings.weight")
    position_PH = weights[f"{EMBEDDINGS}.position_embeddings.weight"] + segments[0]
    unused_H = torch.zeros_like(position_PH[: PADDING + 1])
    weights[f"{EMBEDDINGS}.position_embeddings.weight"] = torch.cat((unused_H, position_PH))
    for by_token in (f"{EMBEDDINGS}.word_embeddings.weight", "generator_lm_head.bias"):
        if by_token in weights:
            weights[by_token] = weights[by_token].clone()
            weights[by_token][[pad, PADDING]] = weights[by_token][[PADDING, pad]]
    renamed = {}
    for name, weight in weights.items():
        if name.startswith("discriminator_predictions."):
            continue
        for ours, theirs in {"electra.": prefix, **NAMES}.items():
            name = name.replace(ours, theirs)
        renamed[name] = weight.contiguous()
    return renamed


def with_padding_at_1(word_piece: WordPiece) -> WordPiece:
    """The tokenizer in which [PAD] and the token of id 1 have exchanged their ids."""
    pad, settings = word_piece.special.pad, json.loads(word_piece.files()["tokenizer.json"])
    exchanged = {word_piece.tokens[pad]: PADDING, word_piece.tokens[PADDING]: pad}
    settings["model"]["vocab"] |= exchanged
    for token in settings["added_tokens"]:
        token["id"] = exchanged.get(token["content"], token["id"])
    settings["added_tokens"].sort(key=lambda token: token["id"])
    return WordPiece(Tokenizer.from_str(json.dumps(settings)))
